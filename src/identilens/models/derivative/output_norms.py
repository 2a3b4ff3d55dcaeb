"""Frobenius norms of the Jacobian blocks of one hidden token, by reverse mode."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.models.derivative.jacobian import (
    DEFAULT_BUDGET,
    DEFAULT_PROBES,
    SquaredNorms,
    check_probes,
    estimate,
)
from identilens.models.derivative.memory import chunk_size
from identilens.models.derivative.probes import orthonormal_probes


def output_norms(
    function: Callable[[Tensor], Float[Tensor, "hidden d_out"]],
    inputs: Float[Tensor, "input d_in"],
    token: int,
    *,
    probes: int = DEFAULT_PROBES,
    seed: int = 0,
    memory_budget: int = DEFAULT_BUDGET,
) -> SquaredNorms:
    """Return ‖∂e_j/∂x_i‖²_F for one hidden token j and every input token i.

    One reverse pass from a random direction u of the output gives uᵀJ_i for all input tokens. With k orthonormal
    directions, ‖J_i‖²_F ≈ (d_out/k) Σ ‖uᵀJ_i‖²: unbiased, with the variance of `jacobian_norms` without leading
    directions, and exact at k = d_out. For one hidden token this needs k passes where forward mode needs n k.

    Args:
        function: From input tokens to hidden tokens.
        inputs: The input tokens.
        token: Position j of the hidden token.
        probes: Number of random directions, from 2 to d_out.
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
    recorded = torch.func.vjp(function, inputs)
    output, pull = recorded[0], recorded[1]
    width = output.shape[-1]
    check_probes(probes, 0, width)
    none = inputs.new_zeros(1, width, 0)
    [frame] = orthonormal_probes(none, probes, torch.Generator().manual_seed(seed)).mT

    def squares(directions: Float[Tensor, "probe d_out"]) -> Float[Tensor, "probe input"]:
        cotangents = output.new_zeros(len(directions), *output.shape)
        cotangents[:, token] = directions
        pulled = torch.vmap(lambda single: pull(single)[0])(cotangents)
        return pulled.detach().square().sum(-1, dtype=torch.float64)

    chunk = chunk_size(lambda count: squares(frame[:count]), probes, memory_budget, "reverse pass")
    found = torch.cat([squares(part) for part in frame.split(chunk)])
    sums = torch.stack([torch.zeros_like(found[0]), found.sum(0), found.square().sum(0)], 1)
    return estimate(sums[:, :, None], width, probes, 0)
