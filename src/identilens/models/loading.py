"""Loading a model by hub id or local path."""

from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from transformers import AutoConfig, AutoImageProcessor, AutoModel, AutoTokenizer, PreTrainedModel

from identilens.errors import InputError, ModelNotFoundError
from identilens.models.families import refuse_known
from identilens.models.lens import Lens

Dtype = Literal["auto", "float32", "float16", "bfloat16", "float64"]


def load(
    model: str | Path, *, dtype: Dtype = "auto", device: str | torch.device | None = None,
    attn_implementation: str | None = None, revision: str | None = None, trust_remote_code: bool = False,
) -> Lens:  # fmt: skip
    """Return a lens on the model under a hub id or local path, in the class its checkpoint was saved from.

    Args:
        model: Hub id (``"bert-base-uncased"``) or folder with config, safetensors and tokenizer.
        dtype: Precision to load in; ``"auto"`` takes the checkpoint's own.
        device: Where to put the model; CUDA when there is one, else the CPU.
        attn_implementation: As in transformers; its own choice when not given.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run Python code that comes with the checkpoint. Off unless asked for.

    Raises:
        ModelNotFoundError: If nothing loadable is found there.
        UnsupportedModelError: If the family is known to bypass the attention interface.
    """
    common: dict[str, Any] = {"revision": revision, "trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(model, **common)
    except (OSError, ValueError) as error:
        raise ModelNotFoundError(
            f"no model found under {str(model)!r}: expected a hub id or a folder with a config.json. "
            f"Check the spelling, or download it first and pass the folder. ({_first_line(error)})"
        ) from error
    refuse_known(config)
    try:
        network = _model_class(config).from_pretrained(
            model, config=config, dtype=dtype if dtype == "auto" else getattr(torch, dtype),
            attn_implementation=attn_implementation, use_safetensors=True, **common,
        )  # fmt: skip
    except OSError as error:
        raise ModelNotFoundError(
            f"{str(model)!r} has a configuration but no safetensors weights that can be read. "
            f"Download the model whole, or convert its weights to safetensors. ({_first_line(error)})"
        ) from error
    except ImportError as error:
        raise InputError(f"{str(model)!r} needs a package that is not installed: {_first_line(error)}") from error
    network.to(device or ("cuda" if torch.cuda.is_available() else "cpu")).eval()
    tokenizer, images = (_processor(auto, model, common) for auto in (AutoTokenizer, AutoImageProcessor))
    return Lens(network, tokenizer, image_processor=images, name=str(model))


def _model_class(config: Any) -> Any:
    names = getattr(config, "architectures", None) or []
    found = getattr(transformers, names[0], None) if names else None
    if names and found is None:
        # Classes registered with transformers' Auto classes, such as this library's own, are no names of its own.
        heads = (transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, transformers.MODEL_FOR_CAUSAL_LM_MAPPING)
        registered = [mapping[type(config)] for mapping in heads if type(config) in mapping]
        found = next((kind for kind in registered if getattr(kind, "__name__", None) == names[0]), None)
    return found if isinstance(found, type) and issubclass(found, PreTrainedModel) else AutoModel


def _processor(auto: Any, model: str | Path, common: dict[str, Any]) -> Any:
    try:
        return auto.from_pretrained(model, **common)
    except (OSError, ValueError, TypeError, KeyError, ImportError):
        return None


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
