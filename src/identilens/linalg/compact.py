"""Projected values in a small orthonormal basis."""

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg.factor import certified_cholesky


def compact_values(
    values: Float[Tensor, "*batch n d_v"], output_projection: Float[Tensor, "*#batch d_v d_model"] | None = None
) -> Float[Tensor, "*batch n r"]:
    """Return F, n x r in float64, whose rows have the same inner products as those of the projected values T.

    T = V W_O equals F Qᵀ with orthonormal columns Q, because W_Oᵀ = Q R gives T = (V Rᵀ) Qᵀ. F and T therefore have
    the same singular values, left singular vectors and left null space. F has r = min(d_v, d_model) columns instead
    of d_model. Without a projection the values are T itself.
    W_O is the head's block, without its bias (Brunner: H; Bhardwaj: D).
    """
    values = values.double()
    return values if output_projection is None else values @ row_factor(output_projection)


def row_factor(matrix: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch rows r"]:
    """Return L, rows x min(rows, columns) in float64, with L Lᵀ = M Mᵀ (M = L Qᵀ, Q orthonormal columns).

    Computed by Cholesky of the Gram matrix for wide, well-conditioned matrices, by QR for others.
    """
    matrix = matrix.double()
    rows, columns = matrix.shape[-2:]
    if rows < columns:
        lower, certified = certified_cholesky(matrix @ matrix.mT, tolerance=0.0)
        if certified.all():
            return lower
    return torch.linalg.qr(matrix.mT, mode="r").R.mT
