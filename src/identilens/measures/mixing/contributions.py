"""Contributions: the share of each input token in each hidden token."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from scipy.stats import norm
from scipy.stats import t as student_t
from torch import Tensor

from identilens.errors import NumericalError


@dataclass(frozen=True)
class Contributions:
    """Shares c_ij of input tokens i in hidden tokens j; rows sum to 1.

    Attributes:
        shares: c_ij, in [0, 1].
        errors: Their standard errors; 0 for exact norms.
        margins: Half widths of their 95 % intervals, at most 1; 0 for exact norms.
    """

    shares: Float[Tensor, "*layer hidden input"]
    errors: Float[Tensor, "*layer hidden input"]
    margins: Float[Tensor, "*layer hidden input"]


def contributions(
    squares: Float[Tensor, "*layer hidden input"],
    variances: Float[Tensor, "*layer hidden input"],
    freedom: int = 0,
    deviations: Float[Tensor, "probe *layer hidden input"] | None = None,
) -> Contributions:
    """Return the relative contribution of every input token to every hidden token, with standard errors.

    With N_ij = ‖∂e_j/∂x_i‖_F (Brunner et al. 2020, Eq. 11), where N² is known or an unbiased estimate:

        c_ij = N_ij / S_j,   S_j = Σ_k N_kj

    Estimates for different input tokens are independent. To first order (delta method):

        Var N_i = Var(N_i²) / (4 N_i²)
        Var c_i = [(1 − c_i)² Var N_i + c_i² Σ_{k≠i} Var N_k] / S²

    Where they share their probes p, ``deviations`` D with Var(N_i²) = Σ_p D_pi² say so, and with M_pi = D_pi / (2 N_i)

        Var c_i = Σ_p (M_pi − c_i Σ_k M_pk)² / S²

    Estimates of squares are skewed: too low ones are more frequent and have too small variances. Intervals are
    therefore worked out for log c_i, with Student's quantile t, and the upper side, the longer, counts for both:

        margin = c_i (exp(t √Var c_i / c_i) − 1)

    ``freedom`` is the number of degrees of freedom of the variances; 0 if they are known.

    Examples:
        >>> import torch
        >>> from identilens.measures.mixing import contributions
        >>> contributions(torch.tensor([[9.0, 16.0]]), torch.zeros(1, 2)).shares
        tensor([[0.4286, 0.5714]])

    Raises:
        NumericalError: If a hidden token does not depend on any input token.
    """
    norms = squares.clamp_min(0).sqrt()
    total = norms.sum(-1, keepdim=True)
    if (total == 0).any() or not torch.isfinite(total).all():
        raise NumericalError(
            "a hidden state does not change with any input token, or its derivative is not finite, so its shares "
            "are not defined. Look for a layer that saturates, or leave that layer out with layers=..."
        )
    shares = norms / total
    spread = torch.where(squares > 0, variances / (4 * squares), 0)
    others = spread.sum(-1, keepdim=True) - spread
    changes = (1 - shares).square() * spread + shares.square() * others
    if deviations is not None:
        moved = torch.where(squares > 0, deviations / (2 * norms), 0)
        changes = (moved - shares * moved.sum(-1, keepdim=True)).square().sum(0)
    errors = changes.sqrt() / total
    quantile = float(student_t.ppf(0.975, freedom) if freedom else norm.ppf(0.975))
    relative = torch.where(shares > 0, errors / shares, 0)
    return Contributions(shares, errors, (shares * torch.expm1(quantile * relative)).clamp_max(1))
