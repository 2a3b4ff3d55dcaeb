"""Models whose parameters wait on disk or CPU until a layer runs, as accelerate keeps them there."""

import torch
from accelerate.hooks import AlignDevicesHook
from accelerate.utils import align_module_device
from torch import Tensor, nn


def device_of(model: nn.Module) -> torch.device:
    """Return the device of the first parameter in memory; the CPU if none is."""
    devices = (part.device for part in model.parameters() if not part.is_meta)
    return next(devices, torch.device("cpu"))


def is_offloaded(model: nn.Module) -> bool:
    """Return whether some parameters are in memory only while they are needed."""
    return any(part.is_meta for part in model.parameters())


def only_moves(module: nn.Module) -> bool:
    """Return whether what replaces a module's forward method is accelerate's, which only moves tensors."""
    return type(vars(module).get("_hf_hook")) is AlignDevicesHook


def tensor_of(model: nn.Module, name: str) -> Tensor:
    """Return a parameter or buffer, loaded if it waits elsewhere."""
    path, _, last = name.rpartition(".")
    module = model.get_submodule(path)
    with align_module_device(module):
        return getattr(module, last).detach()
