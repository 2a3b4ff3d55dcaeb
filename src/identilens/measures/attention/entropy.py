"""The alternative of maximum entropy, whose logits lie in the span of the projected values."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.linalg import HeadValues, SimplexSpace, head_values
from identilens.linalg.checks import check_finite
from identilens.linalg.factor import least_squares
from identilens.measures.attention.checks import checked_weights

ACCEPTED_ERROR = 1e-9
"""Largest change of an output coordinate (in T's orthonormal basis) that is accepted."""

FLATTENED = 0.1
"""A line search ends when the slope is at most this share of the slope at its start."""


@dataclass(frozen=True)
class EntropyAlternative:
    """The most even attention with the same output, and queries and keys whose softmax gives it.

    Attributes:
        weights: A' = softmax(Q' K'ᵀ + bias) over the visible keys (the scaling is inside Q').
        queries: Q', one column for each dimension of T minus its mean.
        keys: K', an orthonormal basis of the columns of T minus their mean.
        entropy: Entropy of each row of A', in nats.
        original_entropy: Entropy of each row of A.
        output_error: Largest change of an output coordinate, in T's orthonormal basis.
    """

    weights: Float[Tensor, "query key"]
    queries: Float[Tensor, "query r"]
    keys: Float[Tensor, "key r"]
    entropy: Float[Tensor, " query"]
    original_entropy: Float[Tensor, " query"]
    output_error: float

    @property
    def needed_d_k(self) -> int:
        """The least d_k with which free queries and keys, without a soft cap, can produce A'."""
        return self.keys.shape[1]


def maximum_entropy_alternative(
    weights: Float[Tensor, "query key"],
    projected_values: HeadValues,
    *,
    visible: Bool[Tensor, "query key"] | None = None,
    bias: Float[Tensor, "query key"] | None = None,
    max_steps: int = 200,
) -> EntropyAlternative:
    """Return argmax of the entropy of a' over {a' >= 0, a'[T, 1] = a[T, 1]} for each row.

    Its logits are in the span of [T, 1]: a' = softmax(C y), with C an orthonormal basis of T minus its mean and y the
    minimiser of the convex function log Σ exp(C y) − yᵀ Cᵀ a. So K' = C and Q' = y have rank(C) <= rank(T) columns. A
    head with d_k >= rank(C), its own keys and no soft cap can produce this alternative, at any distance from A. (Behind
    a soft cap it may not. For heads that share values, a basis of V minus its mean is a K' for all of
    them.) With a bias, a' has the least Kullback–Leibler divergence from softmax(bias) instead. Newton's method, at
    most ``max_steps`` steps of O(n r²) per row. ``weights`` are A, positive on visible keys, as a softmax gives them.

    Examples:
        >>> import torch
        >>> from identilens.measures.attention import maximum_entropy_alternative
        >>> T, weights = torch.tensor([[0.0], [1.0], [0.5]]), torch.tensor([[0.1, 0.1, 0.8], [0.5, 0.5, 0.0]])
        >>> maximum_entropy_alternative(weights, T).weights.round(decimals=4)
        tensor([[0.3333, 0.3333, 0.3333],
                [0.3333, 0.3333, 0.3333]], dtype=torch.float64)

    Raises:
        InputError: Weights that are not distributions over T's rows, or in half precision.
        NumericalError: A row whose output is not reached. (With zero weights, the output can be on the boundary of the
            outputs that softmax weights can give. Then there is no maximiser, and the iterates tend to the boundary.)
    """
    T = head_values(projected_values)
    rows = checked_weights(weights, T, visible)
    check_finite(bias=bias)
    if bias is not None and bias.shape != weights.shape:
        raise InputError(
            f"expected a bias of shape {tuple(weights.shape)}; got {tuple(bias.shape)}; pass one head, no batch."
        )
    keys = T.simplex_space().kept[:, 1:]
    base = torch.zeros_like(rows) if bias is None else bias.detach().double()
    alternative = torch.zeros_like(rows)
    queries = rows.new_zeros((len(rows), keys.shape[1]))
    worst = 0.0
    for index, space in enumerate(T.simplex_spaces(len(rows), visible)):
        alternative[index], logits, error = _row(rows[index], base[index], space, max_steps, index)
        worst = max(worst, error)
        seen = keys[space.visible]
        design = torch.cat([seen, torch.ones_like(seen[:, :1])], 1)
        queries[index] = least_squares(design, logits[space.visible, None])[:-1, 0]
    entropy, original = (torch.special.entr(one).sum(-1) for one in (alternative, rows))
    return EntropyAlternative(alternative, queries, keys, entropy, original, worst)


def _row(
    row: Tensor, base: Tensor, space: SimplexSpace, max_steps: int, index: int
) -> tuple[Tensor, Tensor, float]:
    """Minimise log Σ exp(base + C y) − yᵀ Cᵀ a; return the weights, C y and the output's error."""
    basis, target = space.kept[:, 1:], space.kept[:, 1:].mT @ (row / row.sum())
    y = torch.zeros_like(target)

    def state(at: Tensor) -> tuple[Tensor, Tensor]:
        logits = (base + basis @ at).masked_fill(~space.visible, -torch.inf)
        weights = torch.softmax(logits, -1)
        return weights, basis.mT @ weights - target

    weights, gradient = state(y)
    for _ in range(max_steps):
        if not len(y) or gradient.abs().max() < 1e-15:
            break
        # The mean is subtracted before squaring: near a corner the variance is far smaller than its terms.
        spread = basis - weights @ basis
        hessian = (spread * weights[:, None]).mT @ spread
        ridge = 1e-14 * hessian.diagonal().sum() / len(y) + 1e-300
        factor, failed = torch.linalg.cholesky_ex(hessian + ridge * torch.eye(len(y)).to(y))
        move = gradient if failed else torch.cholesky_solve(gradient[:, None], factor)[:, 0]
        length = _length(
            lambda at, y=y, move=move: float(state(y - at * move)[1] @ move), float(gradient @ move)
        )
        new_weights, new_gradient = state(y - length * move)
        if (
            gradient.abs().max() < ACCEPTED_ERROR
            and new_gradient.abs().max() >= gradient.abs().max()
        ):
            break
        y, weights, gradient = y - length * move, new_weights, new_gradient
    error = float((basis.mT @ weights - target).abs().max()) if len(y) else 0.0
    if not error <= ACCEPTED_ERROR:
        raise NumericalError(
            f"expected the output of row {index} to within {ACCEPTED_ERROR:g}; the maximum-entropy weights reached "
            f"{error:.1e} in {max_steps} Newton steps; raise max_steps, or leave out that row."
        )
    return weights, basis @ y, error


def _length(slope: Callable[[float], float], start: float) -> float:
    """Return a step at which the decreasing ``slope`` of a convex function along a line is nearly zero.

    The slope is exact even where differences of the function's value are rounding. It shows whether a step is too long
    (the weights would become one-hot and the Hessian zero) or too short (logits of a corner are hundreds of nats away).
    """
    low, high, length = 0.0, float("inf"), 1.0
    for _ in range(100):
        here = slope(length)
        if abs(here) <= FLATTENED * abs(start):
            break
        low, high = (length, high) if here > 0 else (low, length)
        length = 2 * length if high == float("inf") else (low + high) / 2
    return length
