"""Dyck transformers as Hugging Face models, for `idl.load`, audit, alternatives and mixing."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.masking_utils import create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from identilens.lab.attention import positions
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.embeddings import MINIMAL, minimal_embedding, symbol_ids, symbols
from identilens.lab.dyck.language import Tokens
from identilens.lab.dyck.layer import DyckAttention, DyckLayer, FixedIdentity

_LONGEST = 6000
"""Place at which a learned direction of linear positions has its full length."""


class DyckEmbeddings(nn.Module):
    """Input of the first layer: token embeddings, or those of a minimal first layer, and positions."""

    symbol_table: Tensor

    def __init__(self, config: DyckConfig) -> None:
        super().__init__()
        self.config = config
        if config.first_layer == "learned":
            self.tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        else:
            table = torch.zeros(symbols(config.language), config.hidden_size)
            if config.first_layer in MINIMAL:
                table[:, : config.embedding_size] = minimal_embedding(
                    config.language, config.first_layer
                )
            self.register_buffer("symbol_table", table)
        if config.positions == "linear":
            self.direction = nn.Parameter(torch.empty(config.hidden_size))

    def forward(
        self, input_ids: Tokens, attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch n d"]:
        """Return the embeddings."""
        if self.config.first_layer == "learned":
            embeddings = self.tokens(input_ids)
        else:
            embeddings = self.symbol_table[symbol_ids(self.config.language, input_ids)]
        if not hasattr(self, "direction"):
            return embeddings
        lengths = positions(embeddings, attention_mask)[..., None] / _LONGEST
        return embeddings + lengths.to(embeddings) * self.direction


class DyckPreTrainedModel(PreTrainedModel):
    """Initial weights and supported attention implementations of both models."""

    config: DyckConfig
    config_class = DyckConfig
    base_model_prefix = "dyck"
    _input_embed_layer = "embeddings"
    _supports_sdpa = True
    _supports_attention_backend = True
    _no_split_modules = ["DyckLayer"]  # noqa: RUF012 - as transformers declares it
    _can_record_outputs = {"hidden_states": DyckLayer, "attentions": DyckAttention}  # noqa: RUF012

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw normal weights of the configured spread, with less variance before residual connections, as in GPT-2."""
        super()._init_weights(module)
        if isinstance(module, FixedIdentity):
            nn.init.eye_(module.weight)
        elif hasattr(module, "direction"):
            nn.init.normal_(module.get_parameter("direction"))
        elif isinstance(module, DyckLayer) and self.config.block == "gpt":
            spread = self.config.initializer_range / (2 * self.config.num_hidden_layers) ** 0.5
            for linear in (module.attention.o_proj, module.down):
                nn.init.normal_(linear.weight, std=spread)


class DyckModel(DyckPreTrainedModel):
    """Embeddings and layers."""

    def __init__(self, config: DyckConfig) -> None:
        super().__init__(config)
        self.embeddings = DyckEmbeddings(config)
        self.layers = nn.ModuleList(
            DyckLayer(config, number) for number in range(config.num_hidden_layers)
        )
        self.norm = nn.LayerNorm(config.hidden_size) if config.block == "gpt" else nn.Identity()
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tokens | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Return the output of the last layer; on request all states and, with eager attention, weights.

        Tokens begin with a start token. Other options of transformers, such as ``use_cache=False``, have no effect.
        """
        hidden = self.embeddings(input_ids, attention_mask)
        mask = create_causal_mask(self.config, hidden, attention_mask, None)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return BaseModelOutput(self.norm(hidden))


class DyckForCausalLM(DyckPreTrainedModel):
    """A Dyck transformer that predicts the next token (Wen et al. 2023, Eq. 10).

    Examples:
        >>> import identilens as idl
        >>> import torch
        >>> config = idl.lab.DyckForCausalLM.config_class(bracket_types=2, max_depth=4, hidden_size=8)
        >>> idl.lab.DyckForCausalLM(config)(torch.tensor([[1, 3, 5]])).logits.shape
        torch.Size([1, 3, 7])
    """

    def __init__(self, config: DyckConfig) -> None:
        super().__init__(config)
        self.dyck = DyckModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tokens | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Return next-token logits, and on request what `DyckModel` returns."""
        states = self.dyck(input_ids, attention_mask, **kwargs)
        return CausalLMOutput(
            logits=self.lm_head(states.last_hidden_state),
            hidden_states=states.hidden_states,
            attentions=states.attentions,
        )


def attention_weights(model: DyckForCausalLM, number: int) -> list[Tensor]:
    """Return W_Q, W_K and W_V of a layer, [size, d_in]."""
    return [
        model.get_parameter(f"dyck.layers.{number}.attention.{part}_proj.weight").detach()
        for part in "qkv"
    ]


AutoConfig.register("identilens_dyck", DyckConfig, exist_ok=True)
AutoModel.register(DyckConfig, DyckModel, exist_ok=True)
AutoModelForCausalLM.register(DyckConfig, DyckForCausalLM, exist_ok=True)
