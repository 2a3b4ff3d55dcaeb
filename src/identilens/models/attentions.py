"""Attention as a tuple of tensors, the form that tools for `output_attentions` of transformers read."""

from collections.abc import Callable
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.measures.attention import norm_share
from identilens.measures.attention.determined import certain_weights
from identilens.models.heads import Head
from identilens.models.layout import one_kind
from identilens.models.lens import Lens
from identilens.models.sequences import Kind

Measure = Literal["raw", "effective", "norm", "certain_lo"]

_MEASURES: dict[str, Callable[[Head], Tensor]] = {
    "raw": lambda head: head.family_weights,
    "effective": lambda head: head.projected.effective(head.family_weights.double(), head.visible),
    "norm": lambda head: torch.cat(
        [
            norm_share(head.family_weights[rows], T)
            for rows, T in head.alike(range(len(head.queries)))
        ]
    ),
    "certain_lo": lambda head: certain_weights(
        head.attention, head.projected, visible=head.visible
    ),
}


def attentions(
    lens: Lens,
    text: Any,
    *,
    measure: Measure = "effective",
    kind: Kind | None = None,
    max_length: int | None = None,
) -> tuple[Float[Tensor, "1 head query key"], ...]:
    """Return a measure of one text's attention as ``outputs.attentions`` of transformers: a tensor per layer.

    Args:
        lens: The model.
        text: One text, pair, list of token ids, image or batch of one; see `InputReader.read`.
        measure: ``raw``, attention weights; ``effective``, the part that the output depends on (Brunner et al. 2020,
            Eq. 9), which can be negative; ``norm``, the share of a key in what all keys add (Kobayashi et al. 2020);
            ``certain_lo``, the least weight in any distribution with the same output, one linear program per weight.
        kind: encoder, decoder or cross; needed if the model has several kinds of attention.
        max_length: Cut a longer text to this many tokens.

    Returns:
        One tensor per layer, in the model's precision, at least float32.

    Raises:
        InputError: For several texts, an unknown measure, or no kind where the model has several.
        UnsupportedModelError: If the attention cannot be captured faithfully.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> raw = idl.attentions(lens, idl.examples()[0], measure="raw")
        >>> effective = idl.attentions(lens, idl.examples()[0])
        >>> len(effective), effective[3].shape
        (6, torch.Size([1, 12, 42, 42]))
        >>> [round(float(one[3][0, 5].norm()), 2) for one in (raw, effective)]
        [3.4, 1.11]
    """
    if measure not in _MEASURES:
        raise SettingError("measure", f"to be one of {', '.join(_MEASURES)}", measure)
    if not isinstance(lens, Lens):
        raise InputError(f"expected a Lens first; got {type(lens).__name__}. Make one with load.")
    items = lens.read(text, max_length)
    if len(items) != 1:
        raise InputError(
            f"attention maps belong to one text; got {len(items)} texts. Call attentions for each of them."
        )
    (captured,) = lens.capture(items[0], weights=True)
    chosen = one_kind(lens.sites(items[0]), kind)
    layers = [layer for layer in captured.layers if layer.site.kind == chosen]
    maps = [torch.stack([_MEASURES[measure](head) for head in layer.heads]) for layer in layers]
    dtypes = [torch.promote_types(layer.values.dtype, torch.float32) for layer in layers]
    return tuple(one.to(dtype)[None] for one, dtype in zip(maps, dtypes, strict=True))
