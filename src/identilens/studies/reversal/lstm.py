"""The encoder–decoder of the reversal task: two LSTM layers, dot-product attention and a dense layer."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from identilens.studies.reversal.training import CrossAttention


class AttentionReverser(nn.Module):
    """Reads tokens with one LSTM, writes with another that attends to the first's outputs (structure2025, V).

    The attention weights are softmax(D Eᵀ) between decoder outputs D and encoder outputs E (Luong's dot product: the
    draft names no scores); the dense layer maps [context, D] to the vocabulary.

    Args:
        vocabulary: Number of tokens; one more, used inside, starts the decoder.
        hidden: Size of both LSTMs.
    """

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.encoder = nn.LSTM(vocabulary, hidden, batch_first=True)
        self.decoder = nn.LSTM(vocabulary + 1, hidden, batch_first=True)
        self.dense = nn.Linear(2 * hidden, vocabulary)

    def forward(
        self, source: Int[Tensor, "batch n"], target: Int[Tensor, "batch m"]
    ) -> Float[Tensor, "batch m vocabulary"]:
        """Return logits of every target token, given those before it."""
        return self._read(source, target)[0]

    @torch.no_grad()
    def cross_attention(self, source: Int[Tensor, "batch n"]) -> CrossAttention:
        """Return what the attention to the encoder is made of, the right tokens given before each."""
        weights, values = self._read(source, source.flip(-1))[1], self.encode(source)[0]
        projection = self.dense.weight[:, : self.encoder.hidden_size].T.expand(len(source), -1, -1)
        return CrossAttention(*(part.double()[None] for part in (weights, values, projection)))

    def written(self, source: Int[Tensor, "batch n"]) -> float:
        """Return the share of tokens that are right when the model goes on from its own."""
        return float((self.write(source) == source.flip(-1)).double().mean())

    def encode(self, source: Int[Tensor, "batch n"]) -> tuple[Float[Tensor, "batch n hidden"], tuple[Tensor, Tensor]]:
        """Return the encoder's outputs, which are the values of the attention, and its last state."""
        return self.encoder(nn.functional.one_hot(source, self.vocabulary).float())

    @torch.no_grad()
    def write(self, source: Int[Tensor, "batch n"]) -> Int[Tensor, "batch n"]:
        """Return the tokens that the model writes by itself, each from the ones it wrote before."""
        encoded, state = self.encode(source)
        token = torch.full_like(source[:, :1], self.vocabulary)
        written = []
        for _ in range(source.shape[1]):
            decoded, state = self.decoder(nn.functional.one_hot(token, self.vocabulary + 1).float(), state)
            token = self._attend(decoded, encoded)[0].argmax(-1)
            written.append(token)
        return torch.cat(written, 1)

    def _read(self, source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        encoded, state = self.encode(source)
        decoded, _ = self.decoder(self._before(target), state)
        return self._attend(decoded, encoded)

    def _before(self, target: Tensor) -> Tensor:
        start = torch.full_like(target[:, :1], self.vocabulary)
        return nn.functional.one_hot(torch.cat([start, target[:, :-1]], 1), self.vocabulary + 1).float()

    def _attend(self, decoded: Tensor, encoded: Tensor) -> tuple[Tensor, Tensor]:
        weights = torch.softmax(decoded @ encoded.mT, -1)
        return self.dense(torch.cat([weights @ encoded, decoded], -1)), weights
