"""Directions in which an input token is varied: those that matter most, and random ones orthogonal to them."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError
from identilens.models.derivative.memory import chunk_size

NOT_FINITE = (
    "the derivative of a hidden state is NaN or infinite. Look for a broken checkpoint, "
    'or run in double precision: load(..., dtype="float64").'
)


def leading_directions(
    function: Callable[[Tensor], tuple[Tensor, ...]],
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
    own = inputs.new_ones(len(inputs), passes)

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
            if length == len(inputs):
                own[:, index] = (~support).to(own)
        return weights

    chunk = chunk_size(
        lambda pieces: pull(zeros(pieces)), passes, memory_budget, "reverse pass", kept
    )
    found = inputs.new_empty(len(inputs), passes, inputs.shape[1])
    for start in range(0, passes, chunk):
        stop = min(start + chunk, passes)
        found[:, start:stop] = pull(draw(start, stop)).detach().transpose(0, 1)
    if not bool(torch.isfinite(found).all()):
        raise NumericalError(NOT_FINITE)
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
