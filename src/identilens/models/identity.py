"""What tells one model from another."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from identilens.errors import InputError


def digest_of(model: nn.Module) -> str:
    """Return the sha256 over the sha256 of every parameter and buffer of a model, and the adapters that are in use."""
    digest, state = hashlib.sha256(), sorted(model.state_dict().items())
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for (name, tensor), content in zip(state, threads.map(_content, (tensor for _, tensor in state)), strict=True):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + content)
    for name, module in model.named_modules():
        # Names that peft's layers have: the same tensors compute something else when an adapter is switched off.
        if (active := getattr(module, "active_adapters", None)) is not None and not callable(active):
            digest.update(f"{name} {active} {getattr(module, 'disable_adapters', None)}".encode())
    return digest.hexdigest()


def _content(tensor: Tensor) -> bytes:
    return hashlib.sha256(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data).digest()


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """Return the model of transformers that was given, or that a wrapper of peft holds.

    Raises:
        InputError: For any other object.
    """
    # The wrapper that peft makes is no model of transformers; the one inside it runs with the adapter.
    get_base = getattr(model, "get_base_model", None)
    inner = model if get_base is None else get_base()
    if not isinstance(inner, PreTrainedModel):
        raise InputError(f"expected a transformers model; got {type(model).__name__}. Load one with identilens.load.")
    return inner
