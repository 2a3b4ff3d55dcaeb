"""Attention heads as they compute on one text."""

from torch import Tensor

from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import find_site
from identilens.models.lens import Lens
from identilens.models.sequences import Kind


def read_head(lens: Lens, item: Item, layer: int, head: int, kind: Kind | None = None) -> Head:
    """Return one head on one text, with its weights.

    Layers count from 0 within their kind, heads from 0; the kind is needed if the model has several.

    Raises:
        InputError: If the model has no such head.
        UnsupportedModelError: If the attention cannot be captured faithfully.
    """
    return read_layer(lens, item, find_site(lens.sites(item), layer, head, kind)).head(head)


def read_layer(lens: Lens, item: Item, number: int) -> CapturedLayer:
    """Return the heads of one attention, given by its number in call order, on one text, with their weights.

    Raises:
        UnsupportedModelError: If the attention cannot be captured faithfully.
    """
    captured: list[CapturedLayer] = []

    def keep(call: AttentionCall) -> Tensor:
        output, weights = call.attend()
        if call.index == number:
            captured.append(CapturedLayer.of(call, lens.sites(item)[number], output, weights))
        return output

    lens.run([item], keep)
    return captured[0]
