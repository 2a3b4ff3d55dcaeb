"""Models whose parameters wait on disk or CPU until a layer runs, as accelerate keeps them there."""

import torch
from accelerate.hooks import AlignDevicesHook
from accelerate.utils import align_module_device, has_offloaded_params
from torch import Tensor, nn

from identilens.errors import UnsupportedModelError


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter in memory; the CPU if none is."""
    devices = (one.device for one in model.parameters() if not one.is_meta)
    return next(devices, torch.device("cpu"))


def is_offloaded(model: nn.Module) -> bool:
    """Return whether some parameters are in memory only while they are needed."""
    return any(one.is_meta for one in model.parameters())


def refuse_without_values(model: nn.Module) -> None:
    """Raise for parameters that are nowhere: on the meta device, and not loaded when they are needed.

    Raises:
        UnsupportedModelError: Naming the first.
    """
    lost = [
        f"{path}.{name}"
        for path, module in model.named_modules()
        for name, one in module.named_parameters(recurse=False)
        if one.is_meta and not has_offloaded_params(module)
    ]
    if lost:
        raise UnsupportedModelError(
            f"{len(lost)} parameters of {type(model).__name__} have no values ({lost[0]} is on the meta device). Load "
            "the checkpoint; for models larger than memory, with device_map."
        )


def only_moves(module: nn.Module) -> bool:
    """Return whether what replaces a module's forward method is accelerate's, which only moves tensors."""
    return type(vars(module).get("_hf_hook")) is AlignDevicesHook


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer, loaded if it waits elsewhere."""
    path, _, own = name.rpartition(".")
    module = model.get_submodule(path)
    with align_module_device(module):
        return getattr(module, own).detach()
