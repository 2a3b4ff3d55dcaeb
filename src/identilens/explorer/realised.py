"""Attention that a head computes with other W_Q and W_K, the model's output being what it was."""

from math import isqrt
from typing import Any

import torch

from identilens.errors import InputError
from identilens.explorer.work import Measured, changed, in_numbers
from identilens.measures.attention.realisable import COPIES
from identilens.models.heads import Head
from identilens.models.lens import Lens
from identilens.studies.alternatives.groups import made

DISTANCE = 0.1
"""Mean total variation distance that is looked for."""

ROOM = 192 * 2**20
"""Bytes of a dense factorisation; larger ones could not be given up within half a second."""


def realised(lens: Lens, at: Measured, head: Head) -> dict[str, Any]:
    """Return the attention of a head with other W_Q and W_K, how far they were changed, and what that changes.

    If there is none near, "none" says so, and why.

    Raises:
        InputError: If the text is too long, or the model's parameters cannot be changed for these heads alone.
    """
    rank, (queries, keys) = int(head.projected.rank), head.attention.shape
    seen = torch.full((queries,), keys) if head.visible is None else head.visible.sum(-1)
    size, most = head.group * int((seen - 1).clamp(0, rank).sum()), isqrt(ROOM // (8 * COPIES))
    if size > most:
        raise InputError(
            f"expected a text on which the output sets at most {most} conditions on queries and keys; this one sets "
            f"{size}. Take a shorter text, or run: identilens alternatives --realisable."
        )
    alternative, parameters, run = made(
        lens, at.item, head, DISTANCE, torch.Generator().manual_seed(0), ROOM
    )
    if alternative.dimension == 0:
        return {"none": f"{alternative.note.removesuffix('.')}{_longer(head)}."}
    if alternative.weights is None or parameters.weights is None or run is None:
        raise InputError(
            f"{(alternative.note if alternative.weights is None else parameters.note).removesuffix('.')}."
        )
    numbers = {
        "moved": dict(parameters.moved),
        "dimension": alternative.dimension,
        "note": alternative.note,
    }
    return {**in_numbers(head, parameters.weights), **changed(lens, at, run), **numbers}


def _longer(head: Head) -> str:
    """Return how long a text must be for the generic dimension to be above 0, where that is known."""
    spare = 2 * head.d_k - head.values.shape[1]
    if head.visible is not None or spare <= 0:
        return ""
    return f"; take a text of {(head.d_k * head.d_k + head.d_k) // spare + 1} tokens or more"
