"""Everything a structure analysis adds up while texts go by: its size depends on the model, not on their number."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.linalg import ProjectedValues, compact_values
from identilens.measures.structure.subspace import column_projector
from identilens.models.capture import Collector, Lengths
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.lens import Lens, split_states
from identilens.runs.files import Manifest, write_tensors
from identilens.runs.reading import read_tensors

BATCH_SIZE = 8
_WEIGHTS_AT_ONCE = 2**25


@dataclass(frozen=True)
class LayerView:
    """One attention layer on one text, by ``<kind>.layer<l>``; ``visible`` is None when queries may use every key."""

    key: str
    weights: Float[Tensor, "head query key"]
    projected: ProjectedValues
    visible: Bool[Tensor, "query key"] | None

    @cached_property
    def column(self) -> Float[Tensor, "head key key"]:
        """Projector on col(T) = ker(T')^⊥."""
        return column_projector(self.projected)[0]

    @property
    def energy(self) -> Float[Tensor, "head key key"]:
        """T T' / ‖T‖²."""
        compact = self.projected.compact
        return compact @ compact.mT / compact.square().sum((-2, -1), keepdim=True).clamp_min(1e-300)

    @property
    def effective(self) -> Float[Tensor, "head query key"]:
        """Effective attention (Brunner et al. 2020, Eq. 9)."""
        if self.visible is None:
            return self.weights @ self.column
        return self.projected.effective(self.weights, self.visible)


@dataclass(frozen=True)
class TextView:
    """One text in the model: its number, its attention layers, and the mean of its embedding output."""

    text: int
    layers: tuple[LayerView, ...]
    embedding: Float[Tensor, " d_model"]


@torch.no_grad()
def text_views(lens: Lens, items: Sequence[Item], numbers: range) -> Iterator[TextView]:
    """Yield what some of the texts, all of one length, leave in the model, batch by batch.

    Raises:
        InputError: If an attention layer sees another number of positions than the texts have.
        NumericalError: If weights or values are NaN or infinite.
    """
    sites, n = lens.sites(items[0]), items[0].length
    size = max(1, min(BATCH_SIZE, _WEIGHTS_AT_ONCE // (sum(site.heads for site in sites) * n * n)))
    for some in lens.batches(items, numbers, size):
        chunk = [items[number] for number in some]
        collector = Collector(sites, chunk, weights=True)
        output = lens.run(chunk, collector, output_hidden_states=True)
        lengths = Lengths(chunk)
        for index, number in enumerate(some):
            states = next(iter(split_states(output, lengths, index).values()))
            layers = tuple(_view(layer, number, n) for layer in collector.layers[index])
            yield TextView(number, layers, states[0].double().mean(0).cpu())


def _view(layer: CapturedLayer, text: int, length: int) -> LayerView:
    site, weights = layer.site, layer.weights
    if weights is None or weights.shape[-2:] != (length, length):
        raise InputError(
            f"{site.kind} layer {site.layer} has attention of {weights.shape[-2:] if weights is not None else 'no'} "
            f"positions; a structure needs {length} queries and keys. Use a model that keeps the number of tokens."
        )
    values = layer.values.repeat_interleave(len(layer.queries) // len(layer.values), 0)
    compact = compact_values(values, site.output_projection).cpu()
    if not bool(torch.isfinite(compact).all() and torch.isfinite(weights).all()):
        raise NumericalError(
            f"text {text}, {site.kind} layer {site.layer}: weights or values are NaN or infinite. Look for an overflow "
            "in half precision (load with --dtype float32) or a broken checkpoint."
        )
    visible = None if layer.visible is None else layer.visible.cpu()
    projected = ProjectedValues(compact, site.output_projection.shape[-1])
    return LayerView(f"{site.kind}.layer{site.layer}", weights.double().cpu(), projected, visible)


class State:
    """Sums over texts; written to disk after each part of a run that can be resumed."""

    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        """``<kind>.layer<l>.<name>``: float64 sums [head, n, n]; ``embeddings``: the pool's, one row per text."""

    @property
    def bytes(self) -> int:
        """Bytes of all sums."""
        return sum(tensor.nbytes for tensor in self.sums.values())

    def add(self, layer: str, **tensors: Tensor) -> None:
        """Add to some sums of a layer."""
        for name, tensor in tensors.items():
            total = self.sums.get(f"{layer}.{name}")
            self.sums[f"{layer}.{name}"] = (
                tensor.double().clone() if total is None else total.add_(tensor)
            )

    def keep(self, row: int, rows: int, vector: Float[Tensor, " d"]) -> None:
        """Keep the embedding of one text of the pool."""
        embeddings = self.sums.get("embeddings")
        if embeddings is None:
            embeddings = self.sums["embeddings"] = torch.zeros(
                rows, len(vector), dtype=torch.float64
            )
        embeddings[row] = vector

    def save(self, folder: Path, part: int) -> None:
        """Write the state as it is after a part; the state of the part before stays until the next."""
        write_tensors(_file(folder, part), self.sums)
        Manifest(folder).remove(_file(folder, part - 2).relative_to(folder).as_posix())

    def load(self, folder: Path, part: int) -> None:
        """Take the state as it was after a part."""
        self.sums = read_tensors(_file(folder, part))


def _file(folder: Path, part: int) -> Path:
    return folder / "parts" / f"state-{part:06d}.safetensors"
