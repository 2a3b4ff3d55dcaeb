"""The linear map that a module computes: read from its weight, or measured if the module is wrapped."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from identilens.linalg.memory import wide
from identilens.models.interface import evaluation_mode
from identilens.models.offloading import only_moves, tensor_of

_SIZE = 64.0
"""Size of the unit vectors that measure a map: the bias is subtracted without losing digits of small weights."""
MATCH = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest accepted relative difference between a module's output and that of the linear map read from it."""


def is_pointwise(module: nn.Module) -> bool:
    """Return whether a module is a convolution of kernel size 1, with the axis of channels before that of positions."""
    return isinstance(module, nn.Conv1d) and module.kernel_size == (1,) and module.stride == (1,)


def is_basic(module: nn.Module) -> bool:
    """Return whether a module is a plain linear layer, not a wrapper."""
    return isinstance(module, nn.Linear | Conv1D) or is_pointwise(module)


def channels_last(module: nn.Module, tensor: Tensor) -> Tensor:
    """Return the input or output of a linear map with the channels in the last axis."""
    return tensor.mT if is_pointwise(module) else tensor


def linear_weight(module: nn.Module, width: int, like: Tensor) -> Float[Tensor, "d_in d_out"]:
    """Return W, where the module is x W + b for inputs of a width, device and dtype ``like``.

    The weight of a plain linear layer is read. Anything else (adapters, quantised weights, hooks) is run in evaluation
    mode on unit vectors, and the output for zero is subtracted.
    """
    if _is_plain(module):
        weight = tensor_of(module, "weight")
        return weight if isinstance(module, Conv1D) else weight.T
    images = _run(module, torch.eye(width).to(like) * _SIZE)
    return (images - constant(module, width, like)) / _SIZE


def constant(module: nn.Module, width: int, like: Tensor) -> Float[Tensor, " d_out"]:
    """Return b, where the module is x W + b: its output for zero."""
    return _run(module, like.new_zeros(1, width))[0]


def is_linear(module: nn.Module, inputs: Float[Tensor, "*batch d_in"]) -> bool:
    """Return whether a module computes x W + b for each position, tested on its actual inputs and on random ones."""
    if _is_plain(module):
        return True
    if not [*module.parameters(), *module.buffers()]:
        return False
    rows = inputs.flatten(0, -2)
    tried = torch.cat([rows, drawn_like(rows) * rows.std().clamp_min(1e-3)])
    try:
        weight = linear_weight(module, rows.shape[1], inputs)
        bias = constant(module, rows.shape[1], inputs)
        images = _run(module, tried)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    expected = wide(tried) @ wide(weight) + wide(bias)
    limit = MATCH[inputs.dtype] * expected.abs().max().clamp_min(1e-12)
    return images.shape == expected.shape and bool(((wide(images) - expected).abs() <= limit).all())


def drawn_like(tensor: Tensor) -> Tensor:
    """Return normal random numbers of a tensor's shape, always the same ones."""
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module only multiplies with its weight, a plain tensor, and adds its bias."""
    replaced = "forward" in vars(module) and not only_moves(module)
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    changed = replaced or not all(hasattr(hook, "ours") for hook in hooks)
    plain = type(module) in (nn.Linear, Conv1D) and type(module.weight) is nn.Parameter
    return plain and not changed


@torch.no_grad()
def _run(
    module: nn.Module, inputs: Float[Tensor, "position d_in"]
) -> Float[Tensor, "position d_out"]:
    with evaluation_mode(module):
        return channels_last(module, module(channels_last(module, inputs[None])))[0]
