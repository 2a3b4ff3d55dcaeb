"""Projected values in a small orthonormal basis."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg.factor import inverse_cholesky, inverse_of, smaller_gram
from identilens.linalg.memory import wide


@dataclass(frozen=True)
class OutputFactor:
    """L, in float64, of heads' output projections W_O, each head's block without its bias: W_O = L Qᵀ.

    Q has orthonormal columns, so L Lᵀ = W_O W_Oᵀ. (Brunner: H; Bhardwaj: D.)

    Attributes:
        lower: L, lower triangular, with r = min(d_v, d_model) columns.
        inverse: L⁻¹; not finite where W_O has dependent rows.
        d_model: Number of columns of W_O.
    """

    lower: Float[Tensor, "*head d_v r"]
    inverse: Float[Tensor, "*head r d_v"]
    d_model: int

    @classmethod
    def of(cls, *projections: Float[Tensor, "*head d_v d_model"]) -> "OutputFactor":
        """Return L by Cholesky of the Gram matrix if all heads' are wide and well-conditioned, by QR otherwise.

        Projections of several layers, of one shape, get an axis of layers before that of heads.
        """
        rows, columns = projections[0].shape[-2:]
        if rows < columns:
            grams = [smaller_gram(wide(part)) for part in projections]
            lower, inverse, certified = inverse_cholesky(
                torch.stack(grams).squeeze(0), tolerance=0.0
            )
            if certified.all():
                return cls(lower, inverse, columns)
        matrix = torch.stack([*map(wide, projections)]).squeeze(0)
        lower = torch.linalg.qr(matrix.mT, mode="r").R.mT
        inverse = inverse_of(lower) if rows <= columns else torch.full_like(lower.mT, torch.nan)
        return cls(lower, inverse, columns)

    def grouped(self, texts: int, groups: int) -> "OutputFactor":
        """Return that of the heads of some texts, by the groups that share values; of all texts layer by layer."""
        lower, inverse = (
            part.reshape(-1, groups, part.shape[-3] // groups, *part.shape[-2:]).repeat_interleave(
                texts, 0
            )
            for part in (self.lower, self.inverse)
        )
        return OutputFactor(lower, inverse, self.d_model)
