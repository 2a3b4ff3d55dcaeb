"""Frobenius norms of the Jacobian blocks between input tokens and hidden tokens, by forward mode.

The entry to our derivative engine: a text's derivative is recorded once (`linear_map`), and all tangents go through the
recording. The engine exists because it is faster than the library's way, `torch.vmap` of `torch.func.jvp`, on the whole
task: ``benchmarks/mixing.py`` measures both. A sketch took the library's way 1.56 times as long on two cores of an
Intel Xeon, 1.2 to 1.3 times on an AMD EPYC. Below 1.5 times on both it should be removed.

Measured on the bundled encoder, n = 43, whole sketch, on a machine with other load: 19.9 s by the library and 8.7 s
here on two threads; 1.5 to 1.75 times in processor time on one thread. `torch.func.linearize` needs explicit masks,
needs about 4 s to set up a text (recording: 0.7 s) and then 1.5 times as long for a tangent, and does not work with
mixtures of experts.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.models.derivative.linear_map import linear_map
from identilens.models.derivative.memory import chunk_size
from identilens.models.derivative.probes import NOT_FINITE, leading_directions, orthonormal_probes

Function = Callable[[Tensor], tuple[Tensor, ...]]
"""From [position, d_in] to any number of tensors [position, d_out]; a derivative has an axis of tangents first."""

Method = Literal["exact", "sketch"]

Path = Literal["recorded", "forward", "reverse"]
"""How it was computed: tangents through a recording, or by `torch.func.jvp` for each chunk, or reverse passes."""

DEFAULT_BUDGET = 256 * 2**20
DEFAULT_PROBES = 32


@dataclass(frozen=True)
class SquaredNorms:
    """Squared Frobenius norms ‖∂e_j/∂x_i‖² of one output; ``variances`` of exact norms are zero.

    ``path`` says how they were computed; both ways give the same numbers. ``freedom`` is the number of degrees of
    freedom of the variances, 0 for exact norms.
    """

    squares: Float[Tensor, "hidden input"]
    variances: Float[Tensor, "hidden input"]
    path: Path
    freedom: int


def jacobian_norms(
    function: Function, inputs: Float[Tensor, "input d_in"], *, method: Method = "sketch",
    probes: int = DEFAULT_PROBES, leading: int | None = None, seed: int = 0,
    memory_budget: int = DEFAULT_BUDGET, path: Path = "recorded",
) -> tuple[SquaredNorms, ...]:  # fmt: skip
    """Return ‖∂e_j/∂x_i‖²_F for every hidden token j and input token i of every output of a function.

    Each input token has its tangents; one forward sweep of a chunk of them gives all outputs. Tangents go through a
    derivative that is recorded once, or through `torch.func.jvp` if it cannot be recorded (see `linear_map`); the
    result says which. ``exact`` uses all d_in basis tangents. ``sketch`` uses k orthonormal tangents: q of them follow
    the directions Q that matter most for the other tokens' outputs, found by a few reverse passes for all input tokens
    together; k − q are random directions P in the complement of Q:

        ‖J‖²_F ≈ ‖J Q‖²_F + (d − q)/(k − q) ‖J P‖²_F

    which is unbiased whatever Q is. The k − q summands p are exchangeable with a known total, so the variance of
    the estimate is (d − q)² s²/(k − q) · (1 − (k − q)/(d − q)), with s² their sample variance: also unbiased, and
    zero at k = d, where the sketch is exact.

    k is ``probes`` and q is ``leading``: a quarter of k by default, 0 for random directions only. ``memory_budget`` is
    the largest number of bytes of tensors in memory at once, without the returned ones. The function is called under
    `torch.vmap` and must be differentiable in both modes. The path ``forward`` uses no recording.

    Cost:
        n d_in (exact) or n k (sketch) forward tangents; the sketch also runs 3 k reverse passes.

    Raises:
        InputError: For options that cannot be used, or a budget that is too small for one tangent.
        NumericalError: If a derivative is NaN or infinite.
    """
    width = inputs.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    if method == "exact":
        # The basis itself: every tangent is a leading direction, none is random.
        basis = torch.eye(width, dtype=inputs.dtype, device=inputs.device).expand(len(inputs), -1, -1)
        return _sweep(function, inputs, basis, width, memory_budget, basis[0].nbytes, path)
    if method != "sketch":
        raise InputError(f"method must be exact or sketch; got {method!r}.")
    leading = probes // 4 if leading is None else leading
    check_probes(probes, leading, width)
    directions = leading_directions(function, inputs, leading, 3 * probes, generator, memory_budget)
    frames = orthonormal_probes(directions, probes, generator)
    return _sweep(function, inputs, frames, leading, memory_budget, frames.nbytes, path)


def _sweep(
    function: Function, inputs: Tensor, frames: Float[Tensor, "input d_in probe"], leading: int, budget: int,
    reserved: int, path: Path,
) -> tuple[SquaredNorms, ...]:  # fmt: skip
    """Apply the function's derivative to every probe of every token, and sum the squared lengths."""
    n, width, k = frames.shape
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(k)).to(inputs.device)

    def push(run: Function, token: Tensor, probe: Tensor) -> list[Tensor]:
        # In memory all tangents of a token are adjacent, as in a recorded derivative.
        tangents = inputs.new_zeros(n, len(token), width).transpose(0, 1)
        tangents[torch.arange(len(token), device=inputs.device), token] = frames[token, :, probe]
        return [output.square().sum(-1, dtype=torch.float64) for output in run(tangents)]

    def fitting(run: Function, held: int) -> int:
        return chunk_size(lambda count: push(run, *pairs[:1].expand(count, -1).T), len(pairs), budget, "tangent", held)

    with torch.no_grad():
        run, chunk = None, 0
        if path == "recorded" and (run := linear_map(function, inputs, budget - reserved)) is not None:
            # If its constants leave no room, the derivative is computed again for each chunk.
            with suppress(InputError):
                chunk = fitting(run, reserved + run.nbytes)
        if run is None or chunk == 0:
            path, run = "forward", torch.vmap(lambda tangent: torch.func.jvp(function, (inputs,), (tangent,))[1])
            chunk = fitting(run, reserved)
        lengths = [output.shape[-1] for output in push(run, *pairs[:1].T)]
        # Squares of leading probes; sum and sum of squares of random probes: [input, statistic, hidden].
        sums = [torch.zeros(n, 3, length, dtype=torch.float64, device=inputs.device) for length in lengths]
        for token, probe in (part.T for part in pairs.split(chunk)):
            random = (probe >= leading).to(torch.float64)[:, None]
            for total, squares in zip(sums, push(run, token, probe), strict=True):
                statistics = torch.stack([squares * (1 - random), squares * random, squares.square() * random], 1)
                total.index_add_(0, token, statistics)
    return tuple(estimate(total, width, k, leading, path) for total in sums)


def estimate(sums: Float[Tensor, "input 3 hidden"], width: int, k: int, leading: int, path: Path) -> SquaredNorms:
    """Return the norms from sums over k probes: squares of leading ones, squares and their squares of random ones."""
    fixed, total, squares = sums.unbind(1)
    if not bool(torch.isfinite(sums).all()):
        raise NumericalError(NOT_FINITE)
    count, space = k - leading, width - leading
    if count == space:
        estimate = fixed + total
        return SquaredNorms(estimate.T, torch.zeros_like(estimate.T), path, 0)
    mean = total / count
    sample = (squares - count * mean.square()).clamp_min(0) / (count - 1)
    variance = space**2 * sample / count * (1 - count / space)
    return SquaredNorms((fixed + space * mean).T, variance.T, path, count - 1)


def check_probes(probes: int, leading: int, width: int) -> None:
    """Refuse numbers of probes, leading ones among them, that vectors of this width do not allow."""
    if not 2 <= probes <= width:
        raise InputError(f"probes must be from 2 to {width}, the size of a vector; got {probes}.")
    if not 0 <= leading <= probes - 2 and not leading == 0:
        raise InputError(
            f"leading must be from 0 to {probes - 2}: two of the {probes} probes must stay random, "
            f"so that the error can be estimated; got {leading}."
        )
