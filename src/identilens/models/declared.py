"""What a configuration declares and what a checkpoint contains, compared before and after the model is built."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.hub import cached_file

from identilens.errors import InputError

_COUNTED = re.compile(r"(layers?|depths?|blocks?|stages?|experts?|labels)$")
"""Numbers of a configuration for which modules, or names, are built one by one."""
_QUICK = 1000
"""Such numbers are built in a short time, whatever the checkpoint contains."""
_OLD_BUFFERS = ("inv_freq", "masked_bias", "position_ids")
"""Tensors that older versions of transformers saved and computed without training."""
QUIET = {
    f"_raise_exceptions_for_{what}": False
    for what in ("missing_entries", "connection_errors", "gated_repo")
}


def refuse_endless(model: str | Path, common: Mapping[str, Any]) -> None:
    """Raise for a configuration of more layers than the checkpoint has tensors; building it would not end.

    Raises:
        InputError: Naming the number.
    """
    fields, _ = PreTrainedConfig.get_config_dict(model, **common)
    large = [
        (name, number)
        for name, number in _numbers(fields)
        if number > _QUICK and _COUNTED.search(name)
    ]
    count = _tensors(model, common) if large else None
    for name, number in large:
        if count is not None and number > count:
            raise InputError(
                f"the config.json of {str(model)!r} declares {name} {number:,}, and its weights are {count:,} tensors, "
                "too few for that. Download the model again, or correct its config.json."
            )


def _numbers(fields: Mapping[Any, Any]) -> Iterator[tuple[str, int]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        for number in value if isinstance(value, list) else [value]:
            if isinstance(number, int):
                yield str(name), number


def _tensors(model: str | Path, common: Mapping[str, Any]) -> int | None:
    """Return the number of tensors of a checkpoint in safetensors; None if it has none."""
    index = cached_file(model, "model.safetensors.index.json", **common, **QUIET)
    if index is not None:
        return len(json.loads(Path(index).read_bytes())["weight_map"])
    file = cached_file(model, "model.safetensors", **common, **QUIET)
    if file is None:
        return None
    with safe_open(file, framework="pt") as tensors:
        return len(tensors.keys())


def left_over(network: PreTrainedModel, unexpected: Iterable[str]) -> list[str]:
    """Return the unexpected weights of a checkpoint that belong to parts that the model has, and would change them.

    Weights of other parts (task heads, poolers) are not needed, and buffers are computed.
    """
    body = network.base_model
    parts = {
        name for name, part in body.named_children() if next(part.parameters(), None) is not None
    }
    buffers = {name for name, _ in [*network.named_buffers(), *body.named_buffers()]}
    prefix = f"{network.base_model_prefix}."
    return sorted(
        key
        for key in unexpected
        if key.removeprefix(prefix).split(".")[0] in parts
        and key not in buffers
        and key.removeprefix(prefix) not in buffers
        and not key.endswith(_OLD_BUFFERS)
    )
