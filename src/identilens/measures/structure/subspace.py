"""The subspace R of a stream of texts (structure2025, Eq. 6), and how much of it each text uses."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.linalg import ProjectedValues, relative_tolerance
from identilens.linalg.decompositions import eigh


@dataclass(frozen=True)
class Subspace:
    """R of some heads; its basis is stored as eigenvectors of the Gram matrix.

    The weighted R has only the directions with an eigenvalue of at least a ``share`` in [0, 1]; 0 gives R itself.

    Attributes:
        eigenvalues: Largest first: how visible a direction is in the head's output, as the mean over texts of cos² of
            its angle to col(T). 1 means visible in every text, 0 in none.
        vectors: Orthonormal, one column for each eigenvalue.
        dimension: dim R: number of eigenvalues above the tolerance.
        tolerance: Relative threshold: square roots of eigenvalues up to this share of the largest count as zero.
        texts: Number of texts that were added.
    """

    eigenvalues: Float[Tensor, "head key"]
    vectors: Float[Tensor, "head key key"]
    dimension: Int[Tensor, " head"]
    tolerance: float
    texts: int

    def basis(self, head: int, share: float = 0.0) -> Float[Tensor, "key r"]:
        """Return the structures S_1, …, S_r of one head: an orthonormal basis of R, or of the weighted R."""
        return self.vectors[head][:, self._kept(share)[head]]

    def dimension_at(self, share: float) -> Int[Tensor, " head"]:
        """Return the dimension of the weighted R: directions that are visible in at least this share of the texts."""
        return self._kept(share).sum(-1)

    def effective_dimension(self, part: float = 0.95) -> Int[Tensor, " head"]:
        """Return how many leading directions have this part of the trace; the trace is the mean rank of T."""
        total = self.eigenvalues.sum(-1, keepdim=True)
        return ((self.eigenvalues.cumsum(-1) < part * total).sum(-1) + 1).clamp_max(
            self.eigenvalues.shape[-1]
        )

    def projector(self, share: float = 0.0) -> Float[Tensor, "head key key"]:
        """Return the orthogonal projector on R, or on the weighted R."""
        basis = self.vectors * self._kept(share)[:, None, :]
        return basis @ basis.mT

    def _kept(self, share: float) -> Tensor:
        number = torch.arange(self.eigenvalues.shape[-1], device=self.eigenvalues.device)
        return (number < self.dimension[:, None]) & (self.eigenvalues >= share)


def column_projector(
    projected: ProjectedValues,
) -> tuple[Float[Tensor, "head key key"], Int[Tensor, " head"]]:
    """Return the orthogonal projector on col(T) = ker(T')^⊥ of each head, and its rank."""
    factor = projected.factor.flat
    return factor.basis @ factor.basis.mT, factor.rank


def subspace_of(gram: Float[Tensor, "head key key"], texts: int, d_model: int) -> Subspace:
    """Return R from the sum of projectors over texts.

    ker(T')^⊥ is col(T), so R = (∩ ker T_i')^⊥ = Σ col(T_i) (Eq. 6), the range of Σ U_i U_iᵀ with U_i an orthonormal
    basis of col(T_i). Every text counts the same, however large its values. ``gram`` is the sum Σ U_i U_iᵀ over
    ``texts`` texts; ``d_model`` is the number of columns of T.
    """
    values, vectors = eigh(gram.double() / texts)
    values, vectors = values.flip(-1).clamp_min(0.0), vectors.flip(-1)
    tolerance = relative_tolerance(gram.shape[-1], d_model)
    # Square roots of the eigenvalues are the singular values of all bases, joined as columns.
    dimension = (values.sqrt() > tolerance * values[:, :1].sqrt()).sum(-1)
    return Subspace(values.clamp_max(1.0), vectors, dimension, tolerance, texts)


@dataclass(frozen=True)
class AgainstR:
    """One text's ker(T')^⊥ compared with R; one entry per head.

    Attributes:
        ignored_dimension: dim R − dim(col(T) ∩ R), by trace: directions of R that this text's values map to zero.
        ignored: ‖proj of A on R ⊖ col(T)‖² / ‖A‖²: the share of this text's attention in these directions, in [0, 1].
        outside: tr(P_col(T) (I − P_R)) / rank(T): the share of ker(T')^⊥ outside R; 0 for a text that R includes.
    """

    ignored_dimension: Float[Tensor, " head"]
    ignored: Float[Tensor, " head"]
    outside: Float[Tensor, " head"]


def against_subspace(
    weights: Float[Tensor, "head query key"],
    column: Float[Tensor, "head key key"],
    kept: Float[Tensor, "head key key"],
) -> AgainstR:
    r"""Compare one text's ker(T')^⊥ with R (structure2025, III.B).

    The draft maps proj_{ker(T')^⊥ \ R}(A) to zero. For a text that R includes, col(T) = ker(T')^⊥ is inside R and that
    part is empty. What the text's values do map to zero is the other difference, R ⊖ ker(T')^⊥. Both are returned:
    ``outside`` is the draft's, ``ignored`` the other. ``column`` projects on col(T), ``kept`` on R or the weighted R.
    """
    rank, dimension = (projector.diagonal(dim1=-2, dim2=-1).sum(-1) for projector in (column, kept))
    shared = (column * kept).sum((-2, -1))
    A = weights.double()
    left = (A - A @ column) @ kept
    size = A.square().sum((-2, -1)).clamp_min(1e-300)
    return AgainstR(
        (dimension - shared).clamp_min(0.0),
        (left.square().sum((-2, -1)) / size).clamp(0.0, 1.0),
        ((rank - shared) / rank.clamp_min(1.0)).clamp(0.0, 1.0),
    )
