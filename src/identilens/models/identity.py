"""What tells one model from another."""

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from identilens.errors import InputError, UnsupportedModelError

_BESIDE = ("ADAPTION_PROMPT", "POLY", "SHADOW", "XLORA")
"""Methods of peft beside prompt learning that compute more than the layers of the model inside the wrapper."""
_PLAIN = bool | int | float | str | list | tuple | dict | None


def digest_of(model: nn.Module) -> str:
    """Return the sha256 over the sha256 of every parameter and buffer of a model, and the adapters that are in use."""
    digest, state = hashlib.sha256(), sorted(model.state_dict().items())
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        for (name, tensor), content in zip(
            state, threads.map(_content, (tensor for _, tensor in state)), strict=True
        ):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode() + content)
    for name, module in model.named_modules():
        # Names that peft's layers have: the same tensors compute something else when an adapter is switched off or
        # scaled otherwise.
        if (active := getattr(module, "active_adapters", None)) is not None and not callable(
            active
        ):
            settings = {
                key: value for key, value in vars(module).items() if isinstance(value, _PLAIN)
            }
            digest.update(f"{name} {active} {sorted(settings.items(), key=str)}".encode())
    return digest.hexdigest()


def _content(tensor: Tensor) -> bytes:
    return hashlib.sha256(
        tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data
    ).digest()


def unwrapped(model: nn.Module) -> PreTrainedModel:
    """Return the model of transformers that was given, or that a wrapper of peft holds.

    Raises:
        InputError: For any other object.
        UnsupportedModelError: For an adapter that is not part of the model inside the wrapper.
    """
    # The wrapper that peft makes is no model of transformers; the one inside it runs with the adapter.
    get_base = getattr(model, "get_base_model", None)
    inner = model if get_base is None else get_base()
    if not isinstance(inner, PreTrainedModel):
        raise InputError(
            f"expected a transformers model; got {type(model).__name__}. Load one with identilens.load."
        )
    configs = getattr(model, "peft_config", None)
    active = getattr(model, "active_adapters", ())
    for name, config in configs.items() if isinstance(configs, Mapping) else ():
        method = str(getattr(config.peft_type, "value", config.peft_type))
        beside = (
            config.is_prompt_learning
            or method in _BESIDE
            or getattr(config, "alora_invocation_tokens", None)
        )
        if beside and (callable(active) or name in active):
            _refuse_adapter(f"adapter {name!r} of {method}")
    if any("adaption_prompt" in type(module).__module__ for module in inner.modules()):
        _refuse_adapter("adapter of ADAPTION_PROMPT")
    return inner


def _refuse_adapter(adapter: str) -> NoReturn:
    raise UnsupportedModelError(
        f"the model has the {adapter}, a method of peft that adds prompts, keys or attention of its own, which are not "
        "part of the model's layers. Use an adapter of layers (LoRA, IA3, DoRA), or audit the base model without it: "
        "that is another model."
    )
