"""The encoder–decoder of the reversal task: two LSTM layers, dot-product attention and a dense layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from identilens.lab.reversal.training import CrossAttention, before


class AttentionReverser(nn.Module):
    """Reads tokens with one LSTM, writes with another that attends to the first's outputs (structure2025, V).

    The attention weights are softmax(D Eᵀ) between decoder outputs D and encoder outputs E (Luong's dot product: the
    draft names no scores); the dense layer maps [context, D] to the vocabulary. One token more starts the decoder.
    """

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.encoder = nn.LSTM(vocabulary, hidden, batch_first=True)
        self.decoder = nn.LSTM(vocabulary + 1, hidden, batch_first=True)
        self.dense = nn.Linear(2 * hidden, vocabulary)

    def forward(self, source: Int[Tensor, "batch n"], target: Int[Tensor, "batch m"]) -> Float[Tensor, "batch m v"]:
        """Return logits of every target token, given those before it."""
        return self._read(source, target)[0]

    @torch.no_grad()
    def cross_attention(self, source: Int[Tensor, "batch n"]) -> CrossAttention:
        """Return what the attention to the encoder is made of, the right tokens given before each."""
        weights, values = self._read(source, source.flip(-1))[1], self._encode(source)[0]
        projection = self.dense.weight[:, : self.encoder.hidden_size].T.expand(len(source), -1, -1)
        return CrossAttention(*(part.double()[None] for part in (weights, values, projection)))

    def written(self, source: Int[Tensor, "batch n"]) -> float:
        """Return the share of tokens that are right when the model goes on from its own."""
        return float((self.write(source) == source.flip(-1)).double().mean())

    @torch.no_grad()
    def write(self, source: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        """Return the tokens that the model writes by itself, each from the ones it wrote before."""
        encoded, state = self._encode(source)
        token = torch.full_like(source[:, :1], self.vocabulary)
        written = []
        for _ in range(source.shape[1]):
            decoded, state = self._decode(token, state)
            token = self._attend(decoded, encoded)[0].argmax(-1)
            written.append(token)
        return torch.cat(written, 1)

    def _read(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        encoded, state = self._encode(source)
        return self._attend(self._decode(before(target, self.vocabulary), state)[0], encoded)

    def _encode(self, source: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.encoder(nn.functional.one_hot(source, self.vocabulary).float())

    def _decode(self, tokens: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        return self.decoder(nn.functional.one_hot(tokens, self.vocabulary + 1).float(), state)

    def _attend(self, decoded: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(decoded @ encoded.mT, -1)
        return self.dense(torch.cat([weights @ encoded, decoded], -1)), weights
