"""One post-norm encoder layer with free sizes of keys, queries and values."""

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.models.eager import eager_attention_forward


class XavierLinear(nn.Linear):
    """The map to queries, keys or values: initially Xavier uniform, with zero bias."""


class IdentifiableAttention(nn.Module):
    """Self-attention with free d_k and d_v; ``add`` adds the heads before the output projection (section 4)."""

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.is_causal = False
        heads, d_v = config.num_attention_heads, config.d_v or 0
        self.scaling = {"d_k": config.d_k, "d_v": d_v, "none": 1}[config.logit_scale] ** -0.5
        self.q_proj = XavierLinear(config.hidden_size, heads * config.d_k)
        self.k_proj = XavierLinear(config.hidden_size, heads * config.d_k)
        self.v_proj = XavierLinear(config.hidden_size, heads * d_v)
        self.out_proj = nn.Linear(d_v if config.heads == "add" else heads * d_v, config.hidden_size)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch m d_model"],
        attention_mask: Tensor | None = None,
        queries: int | None = None,
        **kwargs,
    ) -> tuple[Float[Tensor, "batch n d_model"], Tensor | None]:
        """Return the output of the first ``queries`` positions (default: all) and, with eager attention, weights."""
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )

        def split(mapped: Tensor) -> Tensor:
            return mapped.unflatten(-1, (self.config.num_attention_heads, -1)).transpose(1, 2)

        output, weights = attend(
            self,
            split(self.q_proj(hidden_states[:, :queries])),
            split(self.k_proj(hidden_states)),
            split(self.v_proj(hidden_states)),
            attention_mask,
            dropout=self.config.dropout if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        joined = output.sum(2) if self.config.heads == "add" else output.flatten(2)
        return self.out_proj(joined), weights


class IdentifiableEncoderLayer(nn.Module):
    """Attention and feed-forward block, each followed by a residual connection and a norm (Vaswani et al. 2017).

    With ``heads="concat"`` and d_k = d_v = d_model / heads it computes the same as `torch.nn.TransformerEncoderLayer`
    with its defaults. ``block="paper"`` has the residual connections and the ReLU where section 2.2 has them.
    """

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__()
        self.block = config.block
        self.attention = IdentifiableAttention(config)
        self.attention_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.linear1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.linear2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.output_norm = nn.LayerNorm(config.hidden_size, config.layer_norm_eps)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        hidden_states: Float[Tensor, "batch m d_model"],
        attention_mask: Tensor | None = None,
        queries: int | None = None,
        **kwargs,
    ) -> Float[Tensor, "batch n d_model"]:
        """Return the layer's output at the first ``queries`` positions (default: all)."""
        attended, _ = self.attention(hidden_states, attention_mask, queries, **kwargs)
        given = hidden_states[:, :queries]
        middle = self.attention_norm(given + self.dropout(attended))
        if self.block == "paper":
            mapped = nn.functional.relu(self.linear2(self.dropout(self.linear1(middle))))
            return self.output_norm(given + self.dropout(mapped))
        inner = self.dropout(nn.functional.relu(self.linear1(middle)))
        return self.output_norm(middle + self.dropout(self.linear2(inner)))
