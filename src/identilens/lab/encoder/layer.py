"""One post-norm encoder layer with free sizes of keys, queries and values, also in place of torch's own."""

import math
from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.errors import InputError
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.settings import HeadsName
from identilens.models.eager import eager_attention_forward


class XavierLinear(nn.Linear):
    """The map to queries, keys or values: initially Xavier uniform, with zero bias."""


class IdentifiableAttention(nn.Module):
    """Self-attention with free d_k and d_v; ``add`` adds the heads before the output projection (section 4)."""

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.is_causal = False
        self.batch_first = True
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


@torch.no_grad()
def initialise(module: nn.Module, embedding_std: float) -> None:
    """Set the initial weights of a module.

    Embeddings are normal (Bhardwaj et al. 2021, section 6: N(0, 1)). Maps to queries, keys and values are Xavier
    uniform. Other linear maps have torch's default.
    """
    if isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=embedding_std)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, XavierLinear):
        init.xavier_uniform_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        bound = 1 / math.sqrt(module.in_features)
        init.uniform_(module.weight, -bound, bound)
        init.uniform_(module.bias, -bound, bound)


class IdentifiableTransformerLayer(nn.Module):
    """Replaces `torch.nn.TransformerEncoderLayer`, also inside `TransformerEncoder`, with the arguments it supports.

    Post-norm, ReLU, batch first only: a layer of Bhardwaj et al. 2021, section 4. Queries and keys have size ``d_k``,
    by default d_model / nhead. Values have size ``d_v``; the default depends on ``heads``.

    Raises:
        InputError: For sizes that do not fit together, or ``batch_first=False``.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        *,
        heads: HeadsName = "add",
        d_k: int | None = None,
        d_v: int | None = None,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise InputError(
                "the layer takes [batch, position, d_model]. Pass batch_first=True and such inputs."
            )
        config = IdentifiableEncoderConfig(
            heads=heads,
            d_k=max(1, d_model // nhead) if d_k is None else d_k,
            d_v=d_v,
            hidden_size=d_model,
            num_attention_heads=nhead,
            intermediate_size=dim_feedforward,
            dropout=dropout,
            layer_norm_eps=layer_norm_eps,
        )
        config._attn_implementation = "sdpa"
        self.layer = IdentifiableEncoderLayer(config)
        self.layer.apply(partial(initialise, embedding_std=config.initializer_std))

    @property
    def self_attn(self) -> nn.Module:
        """The attention module, under the name that `torch.nn.TransformerEncoder` uses."""
        return self.layer.attention

    def forward(
        self,
        src: Float[Tensor, "batch n d_model"],
        src_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        src_key_padding_mask: Bool[Tensor, "batch n"] | Float[Tensor, "batch n"] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch n d_model"]:
        """Return the output of the layer; masks as in torch: True hides a key, floats are added to the logits.

        ``src_mask`` is [n, n] or [batch·heads, n, n]. ``is_causal`` is a hint, as in torch, that the mask is causal.

        Raises:
            InputError: For ``is_causal`` without a mask.
        """
        if is_causal and src_mask is None:
            raise InputError("is_causal is a hint about src_mask. Pass the mask too.")
        mask = None
        if src_mask is not None:
            mask = _additive(src_mask, src.dtype)
            mask = mask[None, None] if mask.ndim == 2 else mask.unflatten(0, (len(src), -1))
        if src_key_padding_mask is not None:
            padding = _additive(src_key_padding_mask, src.dtype)[:, None, None]
            mask = padding if mask is None else mask + padding
        if mask is not None:
            mask = mask.clamp_min(torch.finfo(src.dtype).min)
        return self.layer(src, mask)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        mask, torch.finfo(dtype).min
    )
