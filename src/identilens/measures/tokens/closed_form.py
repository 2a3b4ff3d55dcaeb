"""The linear map with the least squared error in closed form: ridge regression for all penalties at once."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.tolerance import relative_tolerance

ROWS = 4096  # Rows that are converted to float64 at a time.


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """The ridge solution W, d_out x d_in, with the lowest validation loss; ``losses`` has the loss of every penalty.

    Losses are means of (W e − x)² over tokens and coordinates. Penalties are shares of the mean squared coordinate of
    e.
    """

    weight: Float[Tensor, "d_out d_in"]
    penalty: float
    validation_loss: float
    losses: tuple[float, ...]


def fit_ridge(
    hidden: Float[Tensor, "train d_in"],
    inputs: Float[Tensor, "train d_out"],
    validation_hidden: Float[Tensor, "validation d_in"],
    validation_inputs: Float[Tensor, "validation d_out"],
    penalties: Sequence[float],
) -> RidgeFit:
    """Return the map W that minimises Σ‖W e − x‖² + λ‖W‖²_F, with λ chosen on the validation tokens.

    W = Xᵀ E (Eᵀ E + λ I)⁻¹ for the rows e of E and x of X. With λ = 0, the L2 training of Brunner et al. 2020, B.1
    converges to this W. In the eigenbasis of EᵀE = V diag(s) Vᵀ, all penalties use the same products: with c = VᵀEᵀX
    and g_i = 1/(s_i + λ), the validation error is Σ_ij g_i g_j M_ij (c cᵀ)_ij − 2 Σ_i g_i (c Nᵀ)_ii + ‖X_val‖². M and N
    are EᵀE and EᵀX of the validation tokens in that basis. Each further penalty costs O(d²); the total cost is
    O(tokens d² + d³), in float64. Directions in which the hidden states do not vary (up to float32 rounding) are left
    out. ``penalties`` are the values of λ to try, as shares of trace(EᵀE)/d_in.

    Examples:
        >>> import torch
        >>> from identilens.measures.tokens.closed_form import fit_ridge
        >>> hidden = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> inputs = hidden @ torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        >>> found = fit_ridge(hidden[:30], inputs[:30], hidden[30:], inputs[30:], penalties=[1e-6, 1.0])
        >>> found.penalty, found.weight.round(decimals=3).diagonal()
        (1e-06, tensor([1., 2., 3.]))

    Raises:
        InputError: No penalty, or a negative one.
    """
    if not penalties or min(penalties) < 0:
        raise InputError(
            f"expected penalties of at least 0, got {tuple(penalties)}; 0 is plain least squares"
        )
    gram, cross = _products(hidden, inputs)
    values, V = torch.linalg.eigh(gram)
    # s = σ². More tokens increase signal and rounding equally, so the tolerance is that of a d_in x d_in matrix.
    varying = values > relative_tolerance(len(gram), len(gram)) ** 2 * values[-1]
    c = V.T @ cross
    validation_gram, validation_cross = _products(validation_hidden, validation_inputs)
    quadratic = (V.T @ validation_gram @ V) * (c @ c.T)
    linear = ((V.T @ validation_cross) * c).sum(1)
    scale = gram.trace() / len(gram)
    inverses = [
        torch.where(varying, 1 / (values + penalty * scale).where(varying, 1.0), 0.0)
        for penalty in penalties
    ]
    # The term ‖X_val‖² is the same for all penalties.
    errors = torch.stack(
        [inverse @ quadratic @ inverse - 2 * inverse @ linear for inverse in inverses]
    )
    best = int(errors.argmin())
    squares = float(validation_inputs.double().square().sum())
    losses = tuple(
        max(0.0, (squares + error) / validation_inputs.numel()) for error in errors.tolist()
    )
    weight = ((V * inverses[best]) @ c).T.to(inputs.dtype).contiguous()
    return RidgeFit(
        weight,
        float(penalties[best]),
        _mean_squared(weight, validation_hidden, validation_inputs),
        losses,
    )


def _products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return leftᵀ left and leftᵀ right in float64, computed by blocks of rows."""
    gram = torch.zeros(left.shape[1], left.shape[1], dtype=torch.float64, device=left.device)
    cross = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=left.device)
    for rows_left, rows_right in zip(left.split(ROWS), right.split(ROWS), strict=True):
        rows = rows_left.double()
        gram.addmm_(rows.T, rows)
        cross.addmm_(rows.T, rows_right.double())
    return gram, cross


def _mean_squared(weight: Tensor, hidden: Tensor, inputs: Tensor) -> float:
    """Return the validation loss from the residuals, without the cancellation of the expanded form."""
    blocks = zip(hidden.split(ROWS), inputs.split(ROWS), strict=True)
    errors = ((rows.to(weight.dtype) @ weight.T - targets).square() for rows, targets in blocks)
    return sum(float(error.sum(dtype=torch.float64)) for error in errors) / inputs.numel()
