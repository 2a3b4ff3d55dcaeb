"""Loading a model by hub id or local path."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import transformers
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    PreTrainedModel,
)
from transformers.utils.hub import cached_file

from identilens.errors import (
    IdentilensError,
    InputError,
    ModelError,
    SettingError,
    first_line,
    model_not_found,
)
from identilens.models.bundled import resolved
from identilens.models.lens import Lens

Precision = Literal["float32", "float16", "bfloat16", "float64"]
Dtype = Literal["auto", Precision]

_NAMED = 8
"""Largest number of weights that an error names."""
_WHOLE_TOKENIZERS = ("tokenizer.json", "tekken.json")
"""Files that contain a complete tokenizer of any class."""


def load(
    model: str | Path,
    *,
    dtype: Dtype | torch.dtype = "auto",
    device: str | torch.device | None = None,
    device_map: str | Mapping[str, Any] | None = None,
    quantization: Any = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
) -> Lens:
    """Return a lens on the model of a hub id or local path, in the class from which its checkpoint was saved.

    Args:
        model: Hub id (``"bert-base-uncased"``), folder with config, safetensors and tokenizer, ``"bundled"`` (the
            encoder of the extra ``demo``) or ``"bundled-decoder"``.
        dtype: Precision of the loaded model; ``"auto"`` is the precision of the checkpoint.
        device: Device of the model. Default: CUDA if it is available, else the CPU.
        device_map: Where parameters are kept, in place of ``device``: ``"auto"`` fills the devices, then the memory,
            then reads the rest from disk as it is needed; or a mapping of modules, as in transformers. What is read as
            it is needed has no derivative: `mixing` and certificates of predictions refuse it.
        quantization: Quantises the weights, such as ``transformers.TorchAoConfig(...)``; a quantised checkpoint needs
            none. Output projections that round their inputs are refused, unless the model computes in half precision.
        attn_implementation: As in transformers. Default: the choice of transformers.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run the Python code that the checkpoint contains. Off by default.

    Raises:
        ModelNotFoundError: If no model is found that can be loaded.
        ModelError: If the model cannot be created from its files. The message names folder and cause.
        InputError: If the checkpoint lacks weights or contains others than the configuration declares.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> lens.model.config.model_type, str(lens.dtype)
        ('bert', 'torch.float32')
    """
    if not isinstance(model, str | Path):
        raise InputError(
            f"expected a hub id or a folder; got {type(model).__name__}. For a model in memory: identilens.Lens(model, "
            "tokenizer)."
        )
    if not isinstance(trust_remote_code, bool):
        raise SettingError("trust_remote_code", "to be True or False", trust_remote_code)
    source = resolved(model)
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    if revision is not None and Path(source).exists():
        raise SettingError("revision", "for ids of the hub only", revision)
    if device and device_map:
        raise SettingError("device", "to be left out beside device_map", device)
    precision, known = str(dtype).removeprefix("torch."), ("auto", *get_args(Precision))
    if precision not in known:
        raise InputError(f"expected dtype to be {' or '.join(known)}; got {dtype!r}.")
    optional = {
        "attn_implementation": attn_implementation,
        "quantization_config": quantization,
        "device_map": device_map,
    }
    options = {"dtype": precision, **{name: value for name, value in optional.items() if value}}
    try:
        lens = _loaded(source, str(model), usable_device(device), options, common)
    except IdentilensError:
        raise
    except Exception as error:  # transformers raises whatever a broken file makes it stumble over
        kind = type(error).__name__
        raise ModelError(
            f"{str(source)!r} cannot be loaded ({kind}: {first_line(error)}). If it names a package, "
            f"install that. {_REMEDY}"
        ) from error
    if not (attn_implementation or quantization):
        lens.load_options = {
            "model": str(model),
            "dtype": precision,
            "device": device and str(device),
            "device_map": device_map,
            **common,
        }
    return lens


def _loaded(
    model: str | Path,
    name: str,
    device: torch.device,
    options: dict[str, Any],
    common: dict[str, Any],
) -> Lens:
    try:
        config = AutoConfig.from_pretrained(model, **common)
    except (OSError, ValueError) as error:
        raise model_not_found(model, error) from error
    # An index of weights that names other files would not be read as safetensors.
    index = cached_file(model, "model.safetensors.index.json", **common, **QUIET)
    places = {} if index is None else json.loads(Path(index).read_bytes())["weight_map"]
    if not all(str(file).endswith(".safetensors") for file in places.values()):
        raise ModelError(f"{index} names files that are no safetensors. {_REMEDY}")
    options |= {"config": config, "use_safetensors": True, **common}
    [known, *_] = getattr(config, "architectures", None) or [""]
    # Classes registered with the Auto classes of transformers, such as ours, are not attributes of transformers.
    heads = (
        transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    )
    registered = (mapping.get(type(config), None) for mapping in heads)
    classes = [getattr(transformers, known, None), *registered]
    kind = next(
        (
            kind
            for kind in classes
            if isinstance(kind, type)
            and issubclass(kind, PreTrainedModel)
            and kind.__name__ == known
        ),
        AutoModel,
    )
    # A quantised model stays where it was loaded.
    if "quantization_config" in {**options, **config.to_dict()}:
        options.setdefault("device_map", {"": device})
    network: Any = _from_checkpoint(model, kind, options)
    (network if "device_map" in options else network.to(device)).eval()

    def beside(kind: Any) -> Any:
        with suppress(OSError, ValueError, TypeError, KeyError, ImportError):
            return kind.from_pretrained(model, **common)

    tokenizer, images = map(beside, (AutoTokenizer, AutoImageProcessor))
    # Where none of a tokenizer's files exists, transformers has made an empty one.
    expected = [*getattr(tokenizer, "vocab_files_names", {}).values()]
    files = (*expected, *_WHOLE_TOKENIZERS)
    if expected and not any(cached_file(model, file, **common, **QUIET) for file in files):
        tokenizer = None
    return Lens(network, tokenizer, image_processor=images, name=name)


def _from_checkpoint(model: str | Path, kind: Any, options: dict[str, Any]) -> PreTrainedModel:
    """Return the model of a checkpoint, without its task head if the checkpoint has none.

    Parameters of a pooler after all layers may be lacking.
    """
    network, info = kind.from_pretrained(model, output_loading_info=True, **options)
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key.split(".")[:2])
    if missing and kind is not AutoModel:
        return _from_checkpoint(model, AutoModel, options)
    if missing:
        raise InputError(
            f"{str(model)!r} lacks weights that {type(network).__name__} computes with: "
            f"{', '.join(missing[:_NAMED])}. They would be random numbers. Download the checkpoint "
            "again, or save the whole model with save_pretrained."
        )
    if unused := left_over(network, info["unexpected_keys"]):
        raise InputError(
            f"{str(model)!r} contains weights that {type(network).__name__} with this config.json does not compute "
            f"with: {', '.join(unused[:_NAMED])}. It would be another model than the one that was saved. Download "
            "config.json again, or correct what it declares (a number of layers, biases, quantization)."
        )
    return network


_REMEDY = "Download the model again, or save it again with save_pretrained."


_OLD_BUFFERS = ("inv_freq", "masked_bias", "position_ids")
"""Tensors that older versions of transformers saved and computed without training."""
QUIET = {
    f"_raise_exceptions_for_{what}": False
    for what in ("missing_entries", "connection_errors", "gated_repo")
}


def left_over(network: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Return the unexpected weights of a checkpoint that belong to parts that the model has, and would change them.

    Weights of other parts (task heads, poolers) are not needed, and buffers are computed.
    """
    body, prefix = network.base_model, f"{network.base_model_prefix}."
    buffers = dict(body.named_buffers())
    parts = {name.split(".")[0] for name, _ in body.named_parameters(remove_duplicate=False)}
    return sorted(
        key
        for key in unexpected
        if (name := key.removeprefix(prefix)).split(".")[0] in parts
        and name not in buffers
        and not key.endswith(_OLD_BUFFERS)
    )


def usable_device(name: str | torch.device | None) -> torch.device:
    """Return a device, after testing it with a tensor; for None, CUDA if it is available, else the CPU.

    Raises:
        InputError: If there is no such device.
    """
    try:
        usable = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=usable)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise InputError(
            f"cannot use device {str(name)!r}: {first_line(error)}. Leave it out to use the CPU, or CUDA "
            "where it is available."
        ) from error
    return usable
