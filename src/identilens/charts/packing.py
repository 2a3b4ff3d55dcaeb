"""Numbers of maps as they travel in a page: rounded after the square root, deflated, in base64.

The page opens them with `templates/viewer/numbers.js`, which says the same things from its side.
"""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float
from torch import Tensor

BITS = 10
"""Of a weight's square root: a weight of 0.25 is off by 0.0005 at most, one of 0.01 by 0.0001."""

BASIS_BITS = 12

_MISSING = 2**BITS - 1


@dataclass(frozen=True)
class HeadSpace:
    """What a head's output depends on, from which a page works out effective attention, influence and intervals.

    Attributes:
        values: The projected values in as many columns as a value vector has, see `ProjectedValues.compact`.
        rank: Of the projected values.
        visible: Which keys each query sees, where it does not see all.
        rules: Of the verdicts on a weight: thresholds ``within``, ``even`` and ``floor``; ``verdicts``, each a sign and
            words.
    """

    values: Float[Tensor, "key r"]
    rank: int
    visible: Bool[Tensor, "query key"] | None
    rules: Mapping[str, Any]


def packed_matrix(matrix: Float[Tensor, "query key"]) -> dict[str, Any]:
    """Return a matrix of `BITS` a cell, with its largest size and whether it has signs; NaN stays missing."""
    numbers = matrix.detach().double().cpu().numpy()
    finite = np.isfinite(numbers)
    known = np.where(finite, numbers, 0.0)
    size = float(np.abs(known).max(initial=0.0))
    signed = bool((known < 0).any())
    top = _MISSING // 2 if signed else _MISSING - 1
    root = np.sign(known) * np.sqrt(np.abs(known) / (size or 1.0))
    codes = np.where(finite, np.round(root * top) + top * signed, _MISSING)
    return {"data": _packed(codes), "max": size, "signed": signed}


def packed_space(space: HeadSpace) -> dict[str, Any]:
    """Return a basis of the columns of T that has the identity in ``pivots``, the lengths of T's rows, and the mask."""
    T = space.values.detach().double().cpu().numpy()
    packed: dict[str, Any] = {"norms": deflated(np.linalg.norm(T, axis=1).astype("<f4").tobytes())}
    if space.visible is not None:
        packed["visible"] = deflated(space.visible.cpu().numpy().tobytes())
    elif space.rank >= len(T):
        return packed | {"whole": True}
    basis = np.linalg.svd(T, full_matrices=False)[0][:, : space.rank]
    pivots = scipy.linalg.qr(basis.T, mode="r", pivoting=True)[-1][: space.rank]
    rest = np.delete(basis, pivots, axis=0) @ np.linalg.inv(basis[pivots])
    size = float(np.abs(rest).max(initial=0.0)) or 1.0
    middle = 2 ** (BASIS_BITS - 1) - 1
    codes = np.round(rest / size * middle) + middle
    return packed | {"data": _packed(codes), "max": size, "pivots": pivots.tolist()}


def _packed(codes: np.ndarray) -> str:
    """Return codes as their lower eight bits, one after another, and then the upper ones."""
    return deflated(codes.reshape(-1, 1).astype("<u2").view(np.uint8).T.tobytes())


def deflated(content: bytes) -> str:
    """Return bytes in base64, as a browser's "deflate-raw" reads them."""
    return base64.b64encode(zlib.compress(content, 9, -15)).decode("ascii")
