"""Configuration of Dyck transformers, in the form of transformers."""

from typing import Any, Literal, no_type_check

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from identilens.errors import InputError
from identilens.lab.dyck.embeddings import MINIMAL, minimal_embedding
from identilens.lab.dyck.language import END, PADDING, SPECIAL, START, Dyck


@no_type_check  # by jaxtyping, which knows only the fields below; the base class takes many more keywords
@strict
class DyckConfig(PreTrainedConfig):
    """Transformers that read and generate bounded Dyck languages (Wen et al. 2023, sections 2 and 4.1, D.1).

    ``block`` is the kind of layer. ``gpt`` is the standard pre-norm block (Eq. 49 with the usual norms). ``paper`` is
    Eq. 6, whose attention output goes through a LayerNorm to unit length. ``minimal`` is the standard block without
    residual connections, output projection, feed-forward block and final norm: attention between the block's two norms.
    ``first_layer`` is ``learned`` for token embeddings, or a minimal
    first layer (Assumption 1): the name of its embedding, or ``given`` for a table of your own. The layers built here
    then follow it. ``positions`` is ``none``, or ``linear``: a learned direction times i/6000.
    """

    model_type = "identilens_dyck"

    bracket_types: int = 2
    max_depth: int = 4
    open_probability: float | int = 0.5
    vocab_size: int = 0
    hidden_size: int = 50
    intermediate_size: int = 50
    num_hidden_layers: int = 2
    num_attention_heads: int = 1
    key_size: int | None = None
    block: Literal["gpt", "paper", "minimal"] = "gpt"
    first_layer: Literal["learned", "given", "one-hot", "type-depth", "angle"] = "learned"
    positions: Literal["none", "linear"] = "none"
    # For the paper's block: hidden widths of g in each layer, its residual connection, and C_LN of Eq. 7.
    projection_widths: list[list[int]] | None = None
    projection_residual: bool = True
    norm_constant: float | int = 1e-5
    initializer_range: float = 0.02
    pad_token_id: int = PADDING
    bos_token_id: int = START
    eos_token_id: int = END

    def __post_init__(self, **kwargs: Any) -> None:
        self.vocab_size = SPECIAL + 2 * self.bracket_types
        if self.num_attention_heads < 1 or self.hidden_size % self.num_attention_heads:
            raise InputError(
                f"expected heads that divide the hidden size {self.hidden_size}, got {self.num_attention_heads}; "
                "choose another number of heads"
            )
        if self.key_size is None:
            self.key_size = self.hidden_size // self.num_attention_heads
        if self.projection_widths is None:
            self.projection_widths = [[self.intermediate_size]] * self.num_hidden_layers
        super().__post_init__(**kwargs)
        learned = self.first_layer == "learned"
        minimal = self.block == "minimal" and (learned or self.num_hidden_layers > 1)
        if minimal or (self.positions != "none" and not learned):
            raise InputError(
                "the minimal block is one attention layer after a minimal first layer, which has no positions "
                "(Assumption 1); choose first_layer one-hot, type-depth or angle, positions none and one layer"
            )
        if self.embedding_size > self.hidden_size:
            raise InputError(
                f"expected a hidden size of at least {self.embedding_size}, the size of the {self.first_layer} "
                f"embeddings of {self.bracket_types} types and depth {self.max_depth}, got {self.hidden_size}"
            )

    @property
    def language(self) -> Dyck:
        """The language."""
        return Dyck(self.bracket_types, self.max_depth, self.open_probability)

    @property
    def embedding_size(self) -> int:
        """Size of a minimal first layer's embeddings, else the hidden size."""
        if self.first_layer not in MINIMAL:
            return self.hidden_size
        return minimal_embedding(self.language, self.first_layer).shape[1]

    @property
    def d_in(self) -> int:
        """Input size of the first layer: that of the embeddings for the minimal block, else the hidden size."""
        return self.embedding_size if self.block == "minimal" else self.hidden_size
