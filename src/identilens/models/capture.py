"""What one text leaves behind in a model: hidden states and, for each attention layer, its heads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import Kind, Site


@dataclass(frozen=True)
class CapturedHead:
    """One attention head on one text, padding cut away.

    Attributes:
        layer: Counts from 0 within its kind.
        head: Counts from 0.
        kind: ``encoder``, ``decoder`` or ``cross``.
        values: V, bias included: what the weights mix.
        output_projection: W_O, this head's block, bias left out (Brunner: H, Bhardwaj: D).
        head_output: A V, as the model computed it.
        queries: Q, positions applied.
        keys: K, positions applied.
        visible: Which keys each query may use.
        weights: A after softmax, when asked for.
    """

    layer: int
    head: int
    kind: Kind
    values: Float[Tensor, "key d_v"]
    output_projection: Float[Tensor, "d_v d_model"]
    head_output: Float[Tensor, "query d_v"]
    queries: Float[Tensor, "query d_k"]
    keys: Float[Tensor, "key d_k"]
    visible: Bool[Tensor, "query key"]
    weights: Float[Tensor, "query key"] | None


@dataclass(frozen=True)
class CapturedLayer:
    """All heads of one attention layer on one text; keys and values stay grouped as the model holds them."""

    site: Site
    values: Float[Tensor, "group key d_v"]
    keys: Float[Tensor, "group key d_k"]
    queries: Float[Tensor, "head query d_k"]
    head_output: Float[Tensor, "head query d_v"]
    visible: Bool[Tensor, "query key"]
    weights: Float[Tensor, "head query key"] | None

    @property
    def heads(self) -> Iterator[CapturedHead]:
        """The heads one by one; heads of a group share keys and values."""
        size = len(self.queries) // len(self.values)
        projection = self.site.output_projection
        for head in range(len(self.queries)):
            group = head // size
            yield CapturedHead(
                self.site.layer,
                head,
                self.site.kind,
                self.values[group],
                projection[head],
                self.head_output[head],
                self.queries[head],
                self.keys[group],
                self.visible,
                None if self.weights is None else self.weights[head],
            )


@dataclass(frozen=True)
class CapturedText:
    """One text with everything asked for.

    Attributes:
        tokens: What stands at each position, by sequence: "encoder" (or the only one), "decoder".
        layers: Attention layers in call order.
        hidden_states: Embedding output and every layer's output, by sequence, when asked for.
    """

    tokens: dict[str, tuple[str, ...]]
    layers: tuple[CapturedLayer, ...]
    hidden_states: dict[str, Float[Tensor, "layer position d_model"]] | None

    @property
    def heads(self) -> Iterator[CapturedHead]:
        """Every head of every layer."""
        for layer in self.layers:
            yield from layer.heads


class Collector:
    """Keeps, for each text of a batch, what its attention layers hold."""

    def __init__(self, sites: tuple[Site, ...], items: Sequence[Item], weights: bool, use_sdpa: bool) -> None:
        self.sites = sites
        self.lengths = Lengths(items)
        self.weights = weights
        self.use_sdpa = use_sdpa
        self.layers: list[list[CapturedLayer]] = [[] for _ in items]

    def __call__(self, call: AttentionCall) -> Tensor:
        """Handle one attention call: return its output and keep each text's share."""
        site = self.sites[call.index]
        output, weights = (call.run_sdpa(), None) if self.use_sdpa else call.attend()
        visible = call.visible()
        for index in range(len(self.layers)):
            rows, columns = self.lengths.of(index, site.kind, call)
            seen = torch.ones(1, 1, dtype=torch.bool, device=output.device).expand(rows, columns)
            if visible is not None:
                seen = visible[index, :rows, :columns].expand(rows, columns)
            self.layers[index].append(
                CapturedLayer(
                    site,
                    call.value[index, :, :columns].clone(),
                    call.key[index, :, :columns].clone(),
                    call.query[index, :, :rows].clone(),
                    output[index, :rows].transpose(0, 1).clone(),
                    seen,
                    weights[index, :, :rows, :columns].clone() if self.weights and weights is not None else None,
                )
            )
        return output


class Lengths:
    """How many positions of each sequence in a batch belong to each text; the rest is padding."""

    def __init__(self, items: Sequence[Item]) -> None:
        self._lengths = [{name: len(tokens) for name, tokens in item.tokens.items()} for item in items]
        self._padded = {name: max(length[name] for length in self._lengths) for name in self._lengths[0]}

    def of(self, index: int, kind: Kind, call: AttentionCall) -> tuple[int, int]:
        """Return the number of query and of key positions of one call that are the text's own."""
        own = "decoder" if "decoder" in self._padded and kind != "encoder" else "encoder"
        other = "encoder" if kind == "cross" else own
        return self.kept(index, own, call.query.shape[-2]), self.kept(index, other, call.key.shape[-2])

    def kept(self, index: int, sequence: str, positions: int) -> int:
        """Return how many of a sequence's positions are the text's own."""
        # A sequence of another length is not made of tokens (patches, audio frames) and carries no padding.
        return self._lengths[index][sequence] if self._padded.get(sequence) == positions else positions
