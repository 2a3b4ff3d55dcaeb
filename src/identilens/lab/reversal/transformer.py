"""A small transformer for the reversal task: one encoder and one decoder layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import BartConfig, BartForConditionalGeneration

from identilens.lab.reversal.settings import TRANSFORMER_HEADS
from identilens.lab.reversal.training import CrossAttention, before
from identilens.models.lens import Lens


class TransformerReverser(nn.Module):
    """BART with one layer on each side (structure2025, V, with the attention of today's models).

    Three tokens more are the model's own.
    """

    def __init__(self, vocabulary: int, hidden: int, length: int) -> None:
        super().__init__()
        self.start_token = vocabulary
        config = BartConfig(
            vocab_size=vocabulary + 3, d_model=hidden, encoder_layers=1, decoder_layers=1,
            encoder_attention_heads=TRANSFORMER_HEADS, decoder_attention_heads=TRANSFORMER_HEADS,
            encoder_ffn_dim=2 * hidden, decoder_ffn_dim=2 * hidden, dropout=0.0, max_position_embeddings=length,
            decoder_start_token_id=vocabulary, bos_token_id=vocabulary, eos_token_id=vocabulary + 1,
            pad_token_id=vocabulary + 2, forced_eos_token_id=None,
        )  # fmt: skip
        self.model = BartForConditionalGeneration(config)

    def forward(self, source: Int[Tensor, "batch n"], target: Int[Tensor, "batch m"]) -> Float[Tensor, "batch m v"]:
        """Return logits of every target token, given those before it."""
        return self.model(**self._batch(source, target), use_cache=False).logits

    def cross_attention(self, source: Int[Tensor, "batch n"]) -> CrossAttention:
        """Return what the decoder's attention to the encoder is made of, the right tokens given before each."""
        texts = self.lens.capture(self.batch(source), weights=True)
        heads = [[head for head in text.heads if head.kind == "cross"] for text in texts]
        names = ("weights", "values", "output_projection")
        return CrossAttention(*(
            torch.stack([torch.stack([getattr(head, name).double() for head in text]) for text in heads], 1)
            for name in names
        ))  # fmt: skip

    def written(self, source: Int[Tensor, "batch n"]) -> None:
        """Return None: this model is not asked to go on from its own tokens."""

    @property
    def lens(self) -> Lens:
        """The model, opened for inspection."""
        return Lens(self.model, name="reversal transformer")

    def batch(self, source: Int[Tensor, "batch n"]) -> dict[str, Tensor]:
        """Return the inputs of the encoder, with those of a decoder that reverses them."""
        return self._batch(source, source.flip(-1))

    def _batch(self, source: Tensor, target: Tensor) -> dict[str, Tensor]:
        return {"input_ids": source, "decoder_input_ids": before(target, self.start_token)}
