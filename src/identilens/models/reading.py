"""Attention heads as they compute on one text."""

from collections.abc import Sequence

from identilens.models.capture import Collector
from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.layout import find_site
from identilens.models.lens import Lens
from identilens.models.sequences import Kind


def read_head(
    lens: Lens,
    item: Item,
    layer: int,
    head: int,
    kind: Kind | None = None,
    rows: Sequence[int] | None = None,
) -> Head:
    """Return one head on one text, with its weights, or those of some rows.

    Layers count from 0 within their kind, heads from 0; the kind is needed if the model has several.

    Raises:
        InputError: If the model has no such head.
        UnsupportedModelError: If the attention cannot be captured faithfully.
    """
    number = find_site(lens.sites(item), layer, head, kind)
    return read_layer(lens, item, number, rows).head(head)


def read_layer(
    lens: Lens, item: Item, number: int, rows: Sequence[int] | None = None
) -> CapturedLayer:
    """Return the heads of one attention, given by its number in call order, on one text, with their weights.

    Of some rows of a long text, m rows of n keys are computed, and nothing of the size of n rows of n keys.

    Raises:
        UnsupportedModelError: If the attention cannot be captured faithfully.
    """
    collector = Collector(lens.sites(item), [item], rows=rows, number=number)
    lens.run([item], collector)
    return collector.layers[0][0]
