"""Texts of one length, and what each leaves in the model: its attention layers, and its embedding output."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.linalg import OutputFactor, ProjectedValues
from identilens.measures.structure.subspace import column_projector
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.studies.items import Items

BATCH_SIZE = 8
_WEIGHTS_AT_ONCE = 2**25


@dataclass(frozen=True)
class LayerView:
    """One attention layer on one text, by ``<kind>.layer<l>``; ``visible`` is None when queries may use every key."""

    key: str
    weights: Float[Tensor, "head query key"]
    projected: ProjectedValues
    visible: Bool[Tensor, "query key"] | None

    @classmethod
    def of(cls, layer: CapturedLayer, text: int, length: int) -> "LayerView":
        """Return the view of a layer that was captured on a text.

        Raises:
            InputError: If it sees another number of positions than the text has.
            NumericalError: If weights or values are NaN or infinite.
        """
        site, weights = layer.site, layer.weights
        if weights is None or weights.shape[-2:] != (length, length):
            raise InputError(
                f"{site.kind} layer {site.layer} has attention of "
                f"{weights.shape[-2:] if weights is not None else 'no'} positions; a structure needs {length} "
                "queries and keys. Use a model that keeps the number of tokens."
            )
        values = layer.repeated_values
        factor = OutputFactor.of(site.fixed_projection.to(values.device))
        compact = values.double() @ factor.lower
        if not torch.isfinite(compact).all() or not torch.isfinite(weights).all():
            raise NumericalError(
                f"text {text}, {site.kind} layer {site.layer}: weights or values are NaN or infinite. Look for an "
                "overflow in half precision (load with --dtype float32) or a broken checkpoint."
            )
        projected = ProjectedValues(compact, factor.d_model)
        return cls(f"{site.kind}.layer{site.layer}", weights.double(), projected, layer.visible)

    @cached_property
    def column(self) -> Float[Tensor, "head key key"]:
        """Projector on col(T) = ker(T')^⊥."""
        return column_projector(self.projected)[0]

    @property
    def effective(self) -> Float[Tensor, "head query key"]:
        """Effective attention (Brunner et al. 2020, Eq. 9)."""
        if self.visible is None:
            return self.weights @ self.column
        return self.projected.effective(self.weights, self.visible)


@torch.no_grad()
def text_views(
    lens: Lens, items: Sequence[Item], numbers: range
) -> Iterator[tuple[int, list[LayerView], Float[Tensor, " d_model"]]]:
    """Yield some of the texts, all of one length, batch by batch: number, layers, and mean of the embedding output.

    Raises:
        InputError: If an attention layer sees another number of positions than the texts have.
        NumericalError: If weights or values are NaN or infinite.
    """
    sites, n = lens.sites(items[0]), items[0].length
    size = max(1, min(BATCH_SIZE, _WEIGHTS_AT_ONCE // (sum(site.heads for site in sites) * n * n)))
    chosen = [items[number] for number in numbers]
    captured = lens.capture(chosen, weights=True, hidden_states=True, batch_size=size)
    for number, text in zip(numbers, captured, strict=True):
        states = next(iter(text.hidden_states.values()))
        layers = [LayerView.of(layer, number, n) for layer in text.layers]
        yield number, layers, states[0].double().mean(0)


def texts_of_length(lens: Lens, texts: Any, length: int) -> Items:
    """Return texts cut to exactly ``length`` tokens, special ones included; shorter ones are left out.

    Raises:
        InputError: For fewer than two texts, or input that is not made of tokens.
    """
    items = Items(lens, texts, length)
    long_enough = [number for number, item in enumerate(items) if _size(item, number) >= length]
    if len(long_enough) < 2:
        raise InputError(
            f"a structure is what several texts have in common; expected at least 2 texts of {length} tokens, got "
            f"{len(long_enough)}. Give more texts, or lower length (--length)."
        )
    return Items(lens, [items.entries[number] for number in long_enough], length)


def special_positions(lens: Lens, items: Sequence[Item]) -> list[int]:
    """Return the positions that hold a special token in every text."""
    special = set(getattr(lens.tokenizer, "all_special_ids", ()))
    places = set(range(len(items[0].tensors["input_ids"])))
    for item in items:
        ids = item.tensors["input_ids"].tolist()
        places = {position for position in places if ids[position] in special}
    return sorted(places)


def _size(item: Item, number: int) -> int:
    """Return the number of tokens of the shortest sequence of a text."""
    if not item.tokens or "input_ids" not in item.tensors:
        raise InputError(
            f"text {number} is not made of tokens; a structure needs texts or token ids of one length."
        )
    return min(map(len, item.tokens.values()))
