"""Restoration of what a model changes in itself while it runs."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from identilens.models.threads import is_held

_PARTS = ("_parameters", "_buffers", "_modules")
"""Fields of a module that are changed in place when one of its parts is replaced."""


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore attributes, parts and configurations of a model at the end of the context, if it changed them.

    Some models switch their attention for good on a short text, or store frequencies of positions of a long one.
    Private attributes stay: torch and transformers mark there that a model has hooks, which stay, too.
    """
    before = [(owner, dict(fields)) for owner, fields in _fields(model)]
    try:
        yield
    finally:
        for owner, fields in before:
            _restore(owner, fields)


def _fields(model: nn.Module) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield everything with fields in a model, and the fields: modules, their parts, and configurations."""
    configs = {}
    for module in model.modules():
        fields = vars(module)
        yield module, fields
        yield from ((fields[name], fields[name]) for name in _PARTS)
        if hasattr(config := fields.get("config"), "__dict__"):
            configs[id(config)] = config
    yield from ((config, vars(config)) for config in configs.values())


def _restore(owner: Any, before: Mapping[str, Any]) -> None:
    is_parts = isinstance(owner, dict)
    fields = owner if is_parts else vars(owner)
    names = [name for name in {**before, **fields} if is_parts or not name.startswith("_")]
    changed = [name for name in names if fields.get(name) is not before.get(name)]
    changed = [name for name in changed if not is_held(owner, name)]
    for name in changed:
        if name in before:
            fields[name] = before[name]
        else:
            del fields[name]
