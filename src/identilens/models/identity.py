"""What tells one model from another, and a lens in two lines of text."""

import hashlib
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from transformers import PreTrainedModel

from identilens.errors import InputError
from identilens.models.offloading import tensor_of

_PLAIN = bool | int | float | str | list | tuple | dict | None


def digest_of(model: nn.Module) -> str:
    """Return a checksum of the bits of all parameters and buffers of a model, and of the adapters that are in use.

    Each tensor is read where it is. The checksum tells models apart; it is no proof against forgery.
    """
    sums, parts = [], []
    for name, tensor in sorted(model.state_dict().items()):
        tensor = tensor_of(model, name) if tensor.is_meta else tensor
        sums.append(f"{name} {tensor.dtype} {tuple(tensor.shape)}")
        parts += folded(tensor)
    sums.append(str(checksums(parts)))
    for name, module in model.named_modules():
        # Names that peft's layers have: the same tensors compute something else when an adapter is switched off or
        # scaled otherwise.
        active = getattr(module, "active_adapters", None)
        if active is not None and not callable(active):
            settings = [item for item in vars(module).items() if isinstance(item[1], _PLAIN)]
            sums.append(f"{name} {active} {sorted(settings, key=str)}")
    return "checksum:" + hashlib.sha256("\n".join(sums).encode()).hexdigest()


def folded(tensor: Tensor) -> list[Tensor]:
    """Return two rows of words of 64 bits whose sum is that of all periods, for each part of a quantised tensor."""
    if is_traceable_wrapper_subclass(tensor):
        return [
            row
            for name in tensor.__tensor_flatten__()[0]
            for row in folded(getattr(tensor, name).detach())
        ]
    bits, size = tensor.contiguous().flatten().view(torch.uint8), 8 * _PERIOD
    periods, rest = bits.tensor_split([len(bits) // size * size])
    sums = periods.view(torch.int64).view(-1, _PERIOD).sum(0)
    return [sums, pad(rest, (0, size - len(rest))).view(torch.int64)]


def checksums(rows: list[Tensor]) -> list[int]:
    """Return Σ w_i x_i modulo 2⁶⁴ of the words x of each folded tensor; the device is waited for once."""
    device = rows[0].device
    words = torch.cat([row.to(device) for row in rows]).view(-1, 2, _PERIOD).sum(1)
    return (words * _factors(device)).sum(-1).tolist()


@cache
def _factors(device: torch.device) -> Tensor:
    """Return fixed odd numbers w_i that are spread evenly modulo 2⁶⁴, one for each word of a period."""
    factors = torch.arange(_PERIOD, device=device) * _FACTOR
    return (factors ^ (factors >> 29)) * _FACTOR | 1


_FACTOR = -0x61C8864680B583EB
"""An odd number whose multiples, modulo 2⁶⁴, are spread evenly."""

_PERIOD = 16_381
"""Words after which the numbers begin anew: a prime, so that rows of weights that change places have other numbers."""


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """Return the model of transformers that was given, or that a wrapper of torch.compile holds.

    Raises:
        InputError: For any other object.
    """
    model = getattr(model, "_orig_mod", model)
    if not isinstance(model, PreTrainedModel):
        raise InputError(
            f"expected a transformers model; got {type(model).__name__}. Load one with identilens.load. "
            "Of peft's wrapper, merge the adapter (merge_and_unload), or give get_base_model()."
        )
    return model


def state_of(model: nn.Module) -> tuple:
    """Return a value that changes when a model's weights change.

    In-place changes raise a tensor's version. Other devices, precisions and modules have other tensors. Offloaded
    parameters are other tensors after each run, and are taken to stay as they are.
    """
    return tuple(
        (
            id(tensor),
            None if tensor.is_inference() else tensor._version,
            tensor.data_ptr(),
            tensor.dtype,
        )
        for tensor in model.parameters()
        if not tensor.is_meta
    )
