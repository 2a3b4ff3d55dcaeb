"""Frobenius norms of the Jacobian blocks between input tokens and hidden tokens, by forward mode."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite
from identilens.linalg.memory import wide

Function = Callable[[Tensor], tuple[Tensor, ...]]
"""From [position, d_in] to any number of tensors [position, d_out]; a derivative has an axis of tangents first."""


def orthonormal_probes(
    like: Float[Tensor, "input d_in"], count: int, seed: int
) -> Float[Tensor, "input d_in probe"]:
    """Return random orthonormal probes for each input token."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(*like.shape, count, generator=generator, dtype=torch.float32)
    return torch.linalg.qr(noise.to(like))[0]


Method = Literal["exact", "sketch"]

DEFAULT_PROBES = 32

AT_ONCE = 16
"""Tangents at a time of a function of which nothing is known."""


@dataclass(frozen=True)
class SquaredNorms:
    """Squared Frobenius norms ‖∂e_j/∂x_i‖² of one output; ``variances`` of exact norms are zero.

    ``freedom`` is the number of degrees of freedom of the variances, 0 for exact norms. Where the same probes serve all
    input tokens, ``deviations`` has what each probe adds to the errors; their squares sum to the variances.
    """

    squares: Float[Tensor, "hidden input"]
    variances: Float[Tensor, "hidden input"]
    freedom: int
    deviations: Float[Tensor, "probe hidden input"] | None = None


def jacobian_norms(
    function: Function,
    inputs: Float[Tensor, "input d_in"],
    *,
    method: Method = "sketch",
    probes: int = DEFAULT_PROBES,
    seed: int = 0,
    at_once: int = AT_ONCE,
) -> tuple[SquaredNorms, ...]:
    """Return ‖∂e_j/∂x_i‖²_F for every hidden token j and input token i of every output of a function.

    Each input token has its tangents; one forward sweep of a chunk of them (`torch.func.jvp` under `torch.vmap`) gives
    all outputs. ``exact`` uses all d_in basis tangents. ``sketch`` uses k random orthonormal tangents P:

        ‖J‖²_F ≈ d/k ‖J P‖²_F

    which is unbiased. The k summands are exchangeable with a known total, so the variance of the estimate is
    d² s²/k · (1 − k/d), with s² their sample variance: also unbiased, and zero at k = d, where the sketch is exact.

    k is ``probes``; ``at_once`` is how many tangents there are in memory at a time.

    Cost:
        n d_in (exact) or n k (sketch) forward tangents.

    Raises:
        InputError: For options that cannot be used.
        NumericalError: If a derivative is NaN or infinite.
    """
    n, width = inputs.shape
    if method == "exact":
        frames = torch.eye(width).to(inputs).expand(n, -1, -1)
    else:
        check_probes(probes, width)
        frames = orthonormal_probes(inputs, probes, seed)
    k = frames.shape[2]
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(k)).to(inputs.device)
    derivative = torch.vmap(lambda tangent: torch.func.jvp(function, (inputs,), (tangent,))[1])
    # Sums over the probes of squared lengths and of their squares: [input, statistic, hidden].
    sums: list[Tensor] = []
    with torch.no_grad():
        for token, probe in (part.T for part in pairs.split(at_once)):
            tangents = inputs.new_zeros(len(token), n, width)
            tangents[range(len(token)), token] = frames[token, :, probe]
            pushed = [wide(output).square().sum(-1) for output in derivative(tangents)]
            sums = sums or [squares.new_zeros(n, 2, squares.shape[-1]) for squares in pushed]
            for total, squares in zip(sums, pushed, strict=True):
                both = torch.stack([squares, squares.square()], 1)
                total.index_add_(0, token.to(total.device), both)
    return tuple(estimate(total, width, k) for total in sums)


def estimate(sums: Float[Tensor, "input 2 hidden"], width: int, k: int) -> SquaredNorms:
    """Return the norms from sums over k probes, of squared lengths and of their squares."""
    check_finite(derivatives=sums)
    total, squares = sums.permute(1, 2, 0)
    if k == width:
        return SquaredNorms(total, torch.zeros_like(total), 0)
    mean = total / k
    sample = (squares - k * mean.square()).clamp_min(0) / (k - 1)
    return SquaredNorms(width * mean, width**2 * sample / k * (1 - k / width), k - 1)


def check_probes(probes: int, width: int) -> None:
    """Refuse numbers of probes that vectors of this width do not allow."""
    if not 2 <= probes <= width:
        raise InputError(
            f"expected 2 to {width} probes, the size of a vector; got {probes}. Choose as many (sketch_probes)."
        )


def output_norms(
    function: Callable[[Tensor], Float[Tensor, "hidden d_out"]],
    inputs: Float[Tensor, "input d_in"],
    token: int,
    *,
    probes: int | None = DEFAULT_PROBES,
    seed: int = 0,
    at_once: int = AT_ONCE,
) -> SquaredNorms:
    """Return ‖∂e_j/∂x_i‖²_F for one hidden token j and every input token i.

    One reverse pass from a random direction u of the output gives uᵀJ_i for all input tokens. With k orthonormal
    directions, ‖J_i‖²_F ≈ (d_out/k) Σ ‖uᵀJ_i‖²: unbiased, with the variance of `jacobian_norms`, and exact at
    k = d_out. For one hidden token this needs k passes where forward mode needs n k. All input
    tokens share the directions, so that their errors are not independent: `SquaredNorms.deviations`.

    Args:
        function: From input tokens to hidden tokens.
        inputs: The input tokens.
        token: Position j of the hidden token.
        probes: Number of random directions, from 2 to d_out; None for d_out.
        seed: Seed of the random directions.
        at_once: Number of reverse passes at a time.

    Raises:
        InputError: For options that cannot be used.
        NumericalError: If a derivative is NaN or infinite.

    Examples:
        >>> import torch
        >>> output_norms(lambda x: x.cumsum(0), torch.randn(4, 8), 2, probes=8).squares.round(decimals=3).tolist()
        [[8.0, 8.0, 8.0, 0.0]]
    """
    output, pull, *_ = torch.func.vjp(function, inputs)
    width = output.shape[-1]
    count = width if probes is None else probes
    check_probes(count, width)
    [frame] = orthonormal_probes(output[:1], count, seed).mT

    def squares(directions: Float[Tensor, "probe d_out"]) -> Float[Tensor, "probe input"]:
        cotangents = output.new_zeros(len(directions), *output.shape)
        cotangents[:, token] = directions
        pulled = torch.vmap(lambda single: pull(single)[0])(cotangents)
        return wide(pulled.detach()).square().sum(-1)

    norms = torch.cat([*map(squares, frame.split(at_once))])[:, None]
    check_finite(derivatives=norms)
    mean = norms.mean(0)
    left_out = (1 - count / width) / (count * (count - 1))
    deviations = width * left_out**0.5 * (norms - mean)
    variances = deviations.square().sum(0)
    return SquaredNorms(
        width * mean,
        variances,
        (count - 1) * (count < width),
        deviations,
    )
