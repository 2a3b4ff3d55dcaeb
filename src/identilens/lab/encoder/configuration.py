"""Sizes of an identifiable encoder: independent sizes of keys and values, heads concatenated or added."""

from typing import no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from identilens.errors import InputError
from identilens.lab.encoder.settings import HeadsName


@no_type_check  # by jaxtyping, which knows only the fields below; the base class takes many more keywords
@strict
class IdentifiableEncoderConfig(PreTrainedConfig):
    """Configuration of the encoders of Bhardwaj et al. 2021, section 4 to 6; the defaults are their standard setting.

    Attributes:
        heads: ``concat`` (Con) concatenates the head outputs, with d_v = d_model / heads by default. ``add`` (Add) adds
            them, with d_v = d_model by default, so that T can have a rank up to d_model.
        d_k: Size of queries and keys; any number.
        d_v: Size of values of one head; None for the default of ``heads``.
        hidden_size: d_model (the paper: d_e).
        dropout: Dropout of embeddings, attention weights and both sublayers.
        initializer_std: Standard deviation of the initial token and position embeddings.
        sentence_pairs: The classifier sees the first tokens of two sentences through one shared encoder.

    Examples:
        >>> import identilens as idl
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, num_attention_heads=2)
        >>> config.d_k, config.d_v
        (4, 32)
    """

    model_type = "identifiable_encoder"

    vocab_size: int = 100_000
    heads: HeadsName = "concat"
    d_k: int = 64
    d_v: int | None = None
    hidden_size: int = 512
    num_hidden_layers: int = 1
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    max_position_embeddings: int = 512
    dropout: float | int = 0.1
    layer_norm_eps: float = 1e-5
    initializer_std: float | int = 1.0
    sentence_pairs: bool = False
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs) -> None:
        """Set d_v, and raise InputError for heads that do not divide the hidden size."""
        if self.d_v is None:
            if self.heads == "concat" and self.hidden_size % self.num_attention_heads:
                raise InputError(
                    f"{self.num_attention_heads} heads do not divide hidden_size {self.hidden_size}, so d_v is "
                    "not defined. Pass d_v, or another number of heads."
                )
            self.d_v = self.hidden_size
            if self.heads == "concat":
                self.d_v //= self.num_attention_heads
        super().__post_init__(**kwargs)
