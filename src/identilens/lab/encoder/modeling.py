"""Identifiable encoders as Hugging Face models: embeddings, layers, and a classifier on the first token."""

import math
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput, SequenceClassifierOutput
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from identilens.lab.attention import InterfaceAttention, positions
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig


class XavierLinear(nn.Linear):
    """The map to queries, keys or values: initially Xavier uniform, with zero bias."""


class IdentifiableAttention(InterfaceAttention):
    """Self-attention with free d_k and d_v; ``add`` adds the heads before the output projection (section 4)."""

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__(config, config.d_k, is_causal=False)
        heads, d_v = config.num_attention_heads, config.d_v or 0
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
        output, weights = self.attend(
            hidden_states[:, :queries],
            hidden_states,
            attention_mask,
            dropout=self.config.dropout if self.training else 0.0,
            **kwargs,
        )
        joined = output.sum(2) if self.config.heads == "add" else output.flatten(2)
        return self.out_proj(joined), weights


class IdentifiableEncoderLayer(nn.Module):
    """Attention and feed-forward block, each followed by a residual connection and a norm (Vaswani et al. 2017).

    With ``heads="concat"`` and d_k = d_v = d_model / heads it computes the same as `torch.nn.TransformerEncoderLayer`
    with its defaults.
    """

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__()
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
        middle = self.attention_norm(hidden_states[:, :queries] + self.dropout(attended))
        inner = self.dropout(nn.functional.relu(self.linear1(middle)))
        return self.output_norm(middle + self.dropout(self.linear2(inner)))


class IdentifiableEncoderPreTrainedModel(PreTrainedModel):
    """Initial weights and supported attention implementations of both models."""

    config_class = IdentifiableEncoderConfig
    base_model_prefix = "encoder"
    _input_embed_layer = "token_embeddings"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _no_split_modules = ["IdentifiableEncoderLayer"]  # noqa: RUF012
    _can_record_outputs = {  # noqa: RUF012
        "hidden_states": IdentifiableEncoderLayer,
        "attentions": IdentifiableAttention,
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw the initial weights: N(0, 1) embeddings and Xavier uniform maps to queries, keys and values (section 6).

        Other linear maps have torch's default.
        """
        if isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.initializer_std)
        elif isinstance(module, XavierLinear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Linear):
            bound = 1 / math.sqrt(module.in_features)
            init.uniform_(module.weight, -bound, bound)
            init.uniform_(module.bias, -bound, bound)
        else:
            super()._init_weights(module)


class IdentifiableEncoderModel(IdentifiableEncoderPreTrainedModel):
    """Token and position embeddings, followed by identifiable layers (Bhardwaj et al. 2021, section 4, 6).

    Examples:
        >>> import identilens as idl
        >>> import torch
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, vocab_size=50)
        >>> idl.lab.IdentifiableEncoderModel(config)(torch.tensor([[3, 4, 5]])).last_hidden_state.shape
        torch.Size([1, 3, 32])
    """

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__(config)
        self.token_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            IdentifiableEncoderLayer(config) for _ in range(config.num_hidden_layers)
        )
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Int[Tensor, "batch n"] | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Float[Tensor, "batch n d_model"] | None = None,
        position_ids: Int[Tensor, "batch n"] | None = None,
        first_token_only: bool = False,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return the output of the last layer, and other outputs on request, as in transformers.

        By default positions count from each text's first token. With ``first_token_only`` the last layer computes only
        the first position, which must not be padding: the state is the same, at less cost.
        """
        embedded = self.token_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        places = positions(embedded, attention_mask) if position_ids is None else position_ids
        state = self.dropout(embedded + self.position_embeddings(places))
        mask = create_bidirectional_mask(self.config, state, attention_mask)
        for index, layer in enumerate(self.layers):
            queries = 1 if first_token_only and index == len(self.layers) - 1 else None
            narrow = mask[:, :, :queries] if isinstance(mask, Tensor) and mask.ndim == 4 else mask
            state = layer(state, narrow, queries, **kwargs)
        return BaseModelOutput(last_hidden_state=state)


class IdentifiableEncoderForSequenceClassification(IdentifiableEncoderPreTrainedModel):
    """A linear classifier on the first token's state; for sentence pairs, on the two states concatenated.

    Examples:
        >>> import identilens as idl
        >>> import torch
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, vocab_size=50)
        >>> idl.lab.IdentifiableEncoderForSequenceClassification(config)(torch.tensor([[3, 4, 5]])).logits.shape
        torch.Size([1, 2])
    """

    def __init__(self, config: IdentifiableEncoderConfig) -> None:
        super().__init__(config)
        self.encoder = IdentifiableEncoderModel(config)
        self.classifier = nn.Linear(
            config.hidden_size * (2 if config.sentence_pairs else 1), config.num_labels or 1
        )
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Int[Tensor, "batch n"] | None = None,
        attention_mask: Tensor | None = None,
        pair_input_ids: Int[Tensor, "batch m"] | None = None,
        pair_attention_mask: Tensor | None = None,
        labels: Int[Tensor, " batch"] | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput:
        """Return logits [batch, label], and the mean cross-entropy if labels (0 to num_labels − 1) are given.

        A model with ``sentence_pairs`` needs a second sentence; hidden states and weights are those of the first.
        """
        first, states = self._read(input_ids, attention_mask, kwargs)
        if pair_input_ids is not None:
            other, _ = self._read(pair_input_ids, pair_attention_mask, kwargs)
            first = torch.cat([first, other], -1)
        logits = self.classifier(first)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.float(), labels)
        return SequenceClassifierOutput(
            loss,
            logits,
            states.hidden_states,
            states.attentions,
        )

    def _read(
        self, input_ids: Tensor | None, mask: Tensor | None, options: dict[str, Any]
    ) -> tuple[Float[Tensor, "batch d_model"], BaseModelOutput]:
        """Return the state of the first token of each text, and all states, on request or with padding on the left."""
        padded = mask is not None and not mask[:, 0].all()
        every = any(options.get(name) for name in ("output_hidden_states", "output_attentions"))
        output = self.encoder(input_ids, mask, first_token_only=not (padded or every), **options)
        states = output.last_hidden_state
        if mask is None or not padded:
            return states[:, 0], output
        return states[torch.arange(len(states)), mask.int().argmax(-1)], output


AutoConfig.register("identifiable_encoder", IdentifiableEncoderConfig, exist_ok=True)
AutoModel.register(IdentifiableEncoderConfig, IdentifiableEncoderModel, exist_ok=True)
AutoModelForSequenceClassification.register(
    IdentifiableEncoderConfig, IdentifiableEncoderForSequenceClassification, exist_ok=True
)
