"""Device and precision of a model's parameters."""

from dataclasses import replace
from typing import Any, Literal, TypeVar, get_args

import torch
from torch import Tensor

from identilens.errors import InputError, SettingError

Precision = Literal["float32", "float16", "bfloat16", "float64"]
Dtype = Literal["auto", Precision]

R = TypeVar("R", bound=Any)

_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", "disk")
"""Ways to choose where the parts of a model are kept."""


def usable_device(given: str | torch.device | None) -> torch.device:
    """Return a device, after testing it with a tensor; for None, CUDA if it is available, else the CPU.

    Raises:
        InputError: If there is no such device.
    """
    try:
        place = torch.device(given or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"cannot use device {str(given)!r}: {first_line(error)}. Leave it out to use the CPU, or CUDA "
            "where it is available."
        ) from error
    return place


def to_processor(record: R) -> R:
    """Return a dataclass with its tensors in the processor's memory, where the programs of single heads run."""
    tensors = {name: one.cpu() for name, one in vars(record).items() if isinstance(one, Tensor)}
    return replace(record, **tensors)


def check_map(device_map: Any, device: str | torch.device | None) -> None:
    """Check a map that says where a model's parts are kept.

    Raises:
        InputError: For a device beside it, or a word that is no map.
    """
    if device is not None and device_map is not None:
        raise InputError(
            "expected device or device_map; got both. A map says where each part is kept."
        )
    if isinstance(device_map, str) and device_map not in _MAPS:
        raise SettingError("device_map", f"to be {', '.join(_MAPS)} or a mapping", device_map)


def precision_name(dtype: str | torch.dtype) -> str:
    """Return the name of a precision in which a model can be loaded.

    Raises:
        InputError: For any other; the message lists the choices.
    """
    name, known = str(dtype).removeprefix("torch."), ("auto", *get_args(Precision))
    if name not in known:
        raise InputError(f"expected dtype to be {' or '.join(known)}; got {dtype!r}.")
    return name


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
