"""Attention heads as they compute on one text."""

from collections.abc import Sequence

from torch import Tensor

from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, Handler
from identilens.models.layout import Site, find_site
from identilens.models.lens import Lens
from identilens.models.sequences import Kind

_WEIGHTS = 2**24
"""Weights of a call that are held at once though rows alone are asked for."""


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
    captured: list[CapturedLayer] = []
    lens.run([item], keeping(captured, lens.sites(item), rows, number))
    return captured[0]


def keeping(
    captured: list[CapturedLayer],
    sites: Sequence[Site],
    rows: Sequence[int] | None,
    number: int | None = None,
) -> Handler:
    """Return what handles the attention calls of one text, and stores the layer of a number, or every layer."""

    def keep(call: AttentionCall) -> Tensor:
        wanted = number in (None, call.index)
        heads, queries = call.query.shape[1:3]
        # Eager attention, as in whole maps, where it is small.
        whole = heads * queries * call.key.shape[2] <= _WEIGHTS
        whole |= rows is None and wanted
        output, weights = call.attend() if whole else (call.run(), None)
        if wanted:
            if rows is not None and weights is not None:
                weights = weights[:, :, list(rows)]
            elif rows is not None:
                weights = call.rows(rows).attend()[1]
            captured.append(CapturedLayer.of(call, sites[call.index], output, weights, rows))
        return output

    return keep
