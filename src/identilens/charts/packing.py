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

    @property
    def whole(self) -> bool:
        """Whether every direction of the weights has an effect, and nothing is masked."""
        return self.visible is None and self.rank >= len(self.values)


def packed_matrix(matrix: Float[Tensor, "query key"]) -> dict[str, Any]:
    """Return a matrix of `BITS` a cell, with its largest size and whether it has signs; NaN stays missing."""
    numbers = matrix.detach().double().cpu().numpy()
    finite = np.isfinite(numbers)
    size = float(np.abs(numbers[finite]).max(initial=0.0))
    signed = bool((numbers[finite] < 0).any())
    root = np.sqrt(np.abs(np.where(finite, numbers, 0.0)) / (size or 1.0))
    top = _MISSING // 2 if signed else _MISSING - 1
    codes = (
        np.round(np.sign(np.where(finite, numbers, 0.0)) * root * top).astype(np.int32)
        + top * signed
    )
    return {"data": _packed(np.where(finite, codes, _MISSING), BITS), "max": size, "signed": signed}


def packed_space(space: HeadSpace) -> dict[str, Any]:
    """Return a basis of the columns of T that has the identity in ``pivots``, the lengths of T's rows, and the mask."""
    T = space.values.detach().double().cpu().numpy()
    packed: dict[str, Any] = {"norms": _deflated(np.linalg.norm(T, axis=1).astype("<f4").tobytes())}
    if space.visible is not None:
        packed["visible"] = _deflated(
            np.packbits(space.visible.cpu().numpy(), bitorder="little").tobytes()
        )
    if space.whole:
        return packed | {"whole": True}
    basis = np.linalg.svd(T, full_matrices=False)[0][:, : space.rank]
    pivots = scipy.linalg.qr(basis.T, mode="r", pivoting=True)[-1][: space.rank]
    rest = np.delete(basis, pivots, axis=0) @ np.linalg.inv(basis[pivots])
    size = float(np.abs(rest).max(initial=0.0)) or 1.0
    middle = 2 ** (BASIS_BITS - 1) - 1
    codes = np.round(rest / size * middle).astype(np.int32) + middle
    return packed | {"data": _packed(codes, BASIS_BITS), "max": size, "pivots": pivots.tolist()}


def _packed(codes: np.ndarray, bits: int) -> str:
    """Return codes as their upper eight bits, one after another, and then the lower ones, several to a byte."""
    flat = codes.ravel()
    rest, together = bits - 8, 8 // (bits - 8)
    low = flat & (2**rest - 1)
    low = np.append(low, np.zeros(-len(low) % together, low.dtype)).reshape(-1, together)
    joined = (low << (rest * np.arange(together))).sum(-1)
    return _deflated((flat >> rest).astype(np.uint8).tobytes() + joined.astype(np.uint8).tobytes())


def _deflated(content: bytes) -> str:
    return base64.b64encode(deflated(content)).decode("ascii")


def deflated(content: bytes) -> bytes:
    """Return bytes as a browser's "deflate-raw" reads them."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(content) + packer.flush()
