"""Frobenius norms of the Jacobian blocks between input tokens and hidden tokens, by forward mode."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from identilens.errors import InputError
from identilens.linalg.checks import check_finite
from identilens.linalg.memory import LARGE, wide

Function = Callable[[Tensor], tuple[Tensor, ...]]
"""From [position, d_in] to any number of tensors [position, d_out]; a derivative has an axis of tangents first."""

_USED = 0.85
"""Share of a budget that is used for tensors; the rest is for kernels and the heap."""


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all existing tensors that were made inside the context, and their peak.

    Memory that a kernel allocates and frees within one call is not counted.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._seen: dict[int, weakref.ref] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        views = any(one.alias_info for one in func._schema.returns)
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not views:
                storage = leaf.untyped_storage()
                key, size = id(storage), storage.nbytes()
                if key not in self._seen:
                    self._seen[key] = weakref.ref(storage, partial(self._freed, key, size))
                    self.live += size
                    self.peak = max(self.peak, self.live)
        return result

    def _freed(self, key: int, size: int, _: Any) -> None:
        self.live -= size
        self._seen.pop(key, None)


def chunk_size(
    work: Callable[[int], Any], count: int, budget: int, what: str, reserved: int = 0
) -> int:
    """Return how many of ``count`` pieces of work fit at once into a budget of bytes minus ``reserved``.

    The peak is measured for one and for two pieces; it grows by the same amount with every further piece. Memory that
    was in use before is not counted.

    Raises:
        InputError: If the budget is too small for one piece; ``what`` names a piece in the message.
    """
    peaks = []
    for pieces in (1, 2):
        with LiveBytes() as meter:
            work(pieces)
        peaks.append(meter.peak)
    step = max(peaks[1] - peaks[0], 1)
    chunk = 1 + (int(_USED * (budget - reserved)) - peaks[0]) // step
    if chunk < 1:
        needed = reserved + int(peaks[0] / _USED) + 1
        raise InputError(
            f"one {what} of this text needs {needed} bytes of memory, and there are {budget}. Cut the text with "
            "max_length (--max-length)."
        )
    return min(chunk, count)


def by_chunks(work: Callable[[Tensor], Tensor], pieces: Tensor, budget: int, what: str) -> Tensor:
    """Return what is computed of all pieces, of so many at once as fit: see `chunk_size`."""
    chunk = chunk_size(lambda count: work(pieces[:count]), len(pieces), budget, what)
    return torch.cat([work(part) for part in pieces.split(chunk)])


def leading_directions(
    function: Function,
    inputs: Float[Tensor, "input d_in"],
    count: int,
    passes: int,
    generator: torch.Generator,
    memory_budget: int,
) -> Float[Tensor, "input d_in count"]:
    """Return, for each input token, orthonormal directions with a large part of its effect on other tokens.

    One reverse pass from a random combination of hidden tokens gives, for *every* input token at once, a random vector
    of the row space of its Jacobian blocks. A token's effect on its own position is close to a multiple of the
    identity: it has no leading directions and would hide the others. So each pass starts from a random half of the
    positions of one output, and a token uses only passes without its own position. The directions are the leading right
    singular vectors of these vectors, each scaled to length 1. A few digits are enough, because the sketch is unbiased
    for any directions.

    Raises:
        NumericalError: If a derivative is NaN or infinite.
    """
    n, width = inputs.shape
    if count == 0:
        return inputs.new_zeros(n, width, 0)
    # The results of the passes, and the matrices made of them, need memory too.
    kept = 3 * n * (passes + count) * width * inputs.element_size()
    with torch.no_grad():
        shapes = [output.shape for output in function(inputs)]
    own = inputs.new_ones(n, passes)

    def pull(cotangents: tuple[Tensor, ...]) -> Tensor:
        back = torch.func.vjp(function, inputs)[1]
        return torch.vmap(lambda single: back(single)[0])(cotangents)

    def zeros(pieces: int) -> tuple[Tensor, ...]:
        return tuple(inputs.new_zeros(pieces, *shape) for shape in shapes)

    def draw(start: int, stop: int) -> tuple[Tensor, ...]:
        weights = zeros(stop - start)
        for index in range(start, stop):
            length, size = shapes[index % len(shapes)]
            support = torch.rand(length, generator=generator, dtype=torch.float32) < 0.5
            noise = (
                torch.randn(length, size, generator=generator, dtype=torch.float32)
                * support[:, None]
            )
            weights[index % len(shapes)][index - start] = noise.to(inputs)
            if length == n:
                own[:, index] = (~support).to(own)
        return weights

    chunk = chunk_size(
        lambda pieces: pull(zeros(pieces)), passes, memory_budget, "reverse pass", kept
    )
    found = inputs.new_empty(n, passes, width)
    for start in range(0, passes, chunk):
        stop = min(start + chunk, passes)
        found[:, start:stop] = pull(draw(start, stop)).detach().transpose(0, 1)
    check_finite(derivatives=found)
    found *= own[:, :, None] / found.norm(dim=-1, keepdim=True).clamp_min(
        torch.finfo(found.dtype).tiny
    )
    # Subspace iteration on the rows: unlike a decomposition, it cannot fail on the many zero rows.
    basis = torch.linalg.qr(
        found.mT @ torch.randn(n, passes, count, generator=generator, dtype=torch.float32).to(found)
    )[0]
    for _ in range(3):
        basis = torch.linalg.qr(found.mT @ (found @ basis))[0]
    return basis


def orthonormal_probes(
    directions: Float[Tensor, "input d_in leading"], count: int, generator: torch.Generator
) -> Float[Tensor, "input d_in probe"]:
    """Return orthonormal probes for each input token: the given directions, then random ones in their complement."""
    n, width, leading = directions.shape
    noise = torch.randn(n, width, count - leading, generator=generator, dtype=torch.float32).to(
        directions
    )
    return torch.linalg.qr(torch.cat([directions, noise], 2))[0]


Method = Literal["exact", "sketch"]

DEFAULT_PROBES = 32


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
    memory_budget: int = LARGE,
) -> tuple[SquaredNorms, ...]:
    """Return ‖∂e_j/∂x_i‖²_F for every hidden token j and input token i of every output of a function.

    Each input token has its tangents; one forward sweep of a chunk of them (`torch.func.jvp` under `torch.vmap`) gives
    all outputs. ``exact`` uses all d_in basis tangents. ``sketch`` uses k orthonormal tangents: q of them follow
    the directions Q that matter most for the other tokens' outputs, found by a few reverse passes for all input tokens
    together; k − q are random directions P in the complement of Q:

        ‖J‖²_F ≈ ‖J Q‖²_F + (d − q)/(k − q) ‖J P‖²_F

    which is unbiased whatever Q is. The k − q summands p are exchangeable with a known total, so the variance of
    the estimate is (d − q)² s²/(k − q) · (1 − (k − q)/(d − q)), with s² their sample variance: also unbiased, and
    zero at k = d, where the sketch is exact.

    k is ``probes``, q a quarter of it. ``memory_budget`` is the largest number of bytes of tensors in memory at once,
    without the returned ones. The function must be differentiable in both modes.

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
        basis = torch.eye(width).to(inputs).expand(len(inputs), -1, -1)
        return _sweep(function, inputs, basis, width, memory_budget)
    check_probes(probes, width)
    passes, leading = 3 * probes, probes // 4
    directions = leading_directions(
        function,
        inputs,
        leading,
        passes,
        generator,
        memory_budget,
    )
    frames = orthonormal_probes(directions, probes, generator)
    return _sweep(function, inputs, frames, leading, memory_budget)


def _sweep(
    function: Function,
    inputs: Tensor,
    frames: Float[Tensor, "input d_in probe"],
    leading: int,
    budget: int,
) -> tuple[SquaredNorms, ...]:
    """Apply the function's derivative to every probe of every token, and sum the squared lengths."""
    n, width, k = frames.shape
    pairs = torch.cartesian_prod(torch.arange(n), torch.arange(k)).to(inputs.device)
    derivative = torch.vmap(lambda tangent: torch.func.jvp(function, (inputs,), (tangent,))[1])

    def push(token: Tensor, probe: Tensor) -> list[Tensor]:
        tangents = inputs.new_zeros(len(token), n, width)
        tangents[torch.arange(len(token), device=inputs.device), token] = frames[token, :, probe]
        return [wide(output).square().sum(-1) for output in derivative(tangents)]

    with torch.no_grad():
        chunk = chunk_size(
            lambda count: push(*pairs[:1].expand(count, -1).T),
            len(pairs),
            budget,
            "tangent",
            frames.untyped_storage().nbytes(),
        )
        lengths = [output.shape[-1] for output in push(*pairs[:1].T)]
        # Squares of leading probes; sum and sum of squares of random probes: [input, statistic, hidden].
        sums = [wide(inputs.new_zeros(n, 3, length)) for length in lengths]
        for token, probe in (part.T for part in pairs.split(chunk)):
            random = wide(probe >= leading)[:, None]
            for total, squares in zip(sums, push(token, probe), strict=True):
                statistics = torch.stack(
                    [squares * (1 - random), squares * random, squares.square() * random], 1
                )
                total.index_add_(0, token.to(total.device), statistics)
    return tuple(estimate(total, width, k, leading) for total in sums)


def estimate(
    sums: Float[Tensor, "input 3 hidden"], width: int, k: int, leading: int
) -> SquaredNorms:
    """Return the norms from sums over k probes: squares of leading ones, squares and their squares of random ones."""
    check_finite(derivatives=sums)
    fixed, total, squares = sums.unbind(1)
    count, space = k - leading, width - leading
    if count == space:
        estimate = fixed + total
        return SquaredNorms(estimate.T, torch.zeros_like(estimate.T), 0)
    mean = total / count
    sample = (squares - count * mean.square()).clamp_min(0) / (count - 1)
    variance = space**2 * sample / count * (1 - count / space)
    return SquaredNorms((fixed + space * mean).T, variance.T, count - 1)


def check_probes(probes: int, width: int) -> None:
    """Refuse numbers of probes that vectors of this width do not allow."""
    if not 2 <= probes <= width:
        raise InputError(f"probes must be from 2 to {width}, the size of a vector; got {probes}.")


def output_norms(
    function: Callable[[Tensor], Float[Tensor, "hidden d_out"]],
    inputs: Float[Tensor, "input d_in"],
    token: int,
    *,
    probes: int | None = DEFAULT_PROBES,
    seed: int = 0,
    memory_budget: int = LARGE,
) -> SquaredNorms:
    """Return ‖∂e_j/∂x_i‖²_F for one hidden token j and every input token i.

    One reverse pass from a random direction u of the output gives uᵀJ_i for all input tokens. With k orthonormal
    directions, ‖J_i‖²_F ≈ (d_out/k) Σ ‖uᵀJ_i‖²: unbiased, with the variance of `jacobian_norms` without leading
    directions, and exact at k = d_out. For one hidden token this needs k passes where forward mode needs n k. All input
    tokens share the directions, so that their errors are not independent: `SquaredNorms.deviations`.

    Args:
        function: From input tokens to hidden tokens.
        inputs: The input tokens.
        token: Position j of the hidden token.
        probes: Number of random directions, from 2 to d_out; None for d_out.
        seed: Seed of the random directions.
        memory_budget: Largest number of bytes of tensors in memory at once.

    Raises:
        InputError: For options that cannot be used, or a budget that is too small for one pass.
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
    none = inputs.new_zeros(1, width, 0)
    [frame] = orthonormal_probes(none, count, torch.Generator().manual_seed(seed)).mT

    def squares(directions: Float[Tensor, "probe d_out"]) -> Float[Tensor, "probe input"]:
        cotangents = output.new_zeros(len(directions), *output.shape)
        cotangents[:, token] = directions
        pulled = torch.vmap(lambda single: pull(single)[0])(cotangents)
        return wide(pulled.detach()).square().sum(-1)

    found = by_chunks(squares, frame, memory_budget, "reverse pass")[:, None]
    check_finite(derivatives=found)
    mean = found.mean(0)
    left_out = (1 - count / width) / (count * (count - 1))
    deviations = width * left_out**0.5 * (found - mean)
    variances = deviations.square().sum(0)
    return SquaredNorms(
        width * mean,
        variances,
        (count - 1) * (count < width),
        deviations,
    )
