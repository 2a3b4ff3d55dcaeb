"""A model as others see it: one thread's capture apart from other threads, and nothing changed at its end."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import RLock, get_ident
from typing import Any

from torch import nn

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a module's forward method, without names and with them."""


def only_here(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook of torch, marked as ours, that does nothing when another thread calls the module."""
    home = get_ident()

    def guarded(module: nn.Module, args: tuple, kwargs: dict, *output: Any) -> Any:
        return hook(module, (args, kwargs), *output) if get_ident() == home else None

    guarded.ours = True  # pyright: ignore[reportFunctionMemberAccess]
    return guarded


@contextmanager
def hooked(
    modules: Iterable[nn.Module],
    before: Callable[..., Any] | None = None,
    after: Callable[..., Any] | None = None,
) -> Iterator[None]:
    """Call hooks before and after each run of some modules in this thread, inside the context.

    Both get the module and its inputs, ``after`` its output, too; they may return others.
    """
    with ExitStack() as hooks:
        for module in modules:
            if before is not None:
                hook = module.register_forward_pre_hook(only_here(before), with_kwargs=True)
                hooks.enter_context(hook)
            if after is not None:
                hook = module.register_forward_hook(only_here(after), with_kwargs=True)
                hooks.enter_context(hook)
        yield


def first_input(inputs: Inputs) -> Any:
    """Return what a layer reads: its first argument, or its hidden states by name."""
    args, kwargs = inputs
    return args[0] if args else kwargs.get("hidden_states")


class EndedError(Exception):
    """Ends a forward pass after the layer of interest."""


_LOCK = RLock()
_BEFORE: dict[tuple[int, str], tuple[Any, int]] = {}
"""Attributes that are set while any thread needs them: their previous values, and how many threads need them."""


@contextmanager
def attribute(owners: Iterable[Any], name: str, value: Any) -> Iterator[None]:
    """Set an attribute of some objects inside the context, in any number of threads at once.

    The first thread stores the previous value; the last thread restores it.
    """
    owners = [*owners]
    with _LOCK:
        for owner in owners:
            before, count = _BEFORE.get((id(owner), name), (getattr(owner, name), 0))
            _BEFORE[id(owner), name] = before, count + 1
            setattr(owner, name, value)
    try:
        yield
    finally:
        with _LOCK:
            for owner in owners:
                before, count = _BEFORE.pop((id(owner), name))
                if count > 1:
                    _BEFORE[id(owner), name] = before, count - 1
                else:
                    setattr(owner, name, before)


_PARTS = ("_parameters", "_buffers", "_modules")
"""Fields of a module that are changed in place when one of its parts is replaced."""


def configurations(model: nn.Module) -> list[Any]:
    """Return the configurations of a model's modules; some modules have a mapping of that name."""
    configs = (vars(module).get("config") for module in model.modules())
    return [*{id(config): config for config in configs if hasattr(config, "__dict__")}.values()]


def _fields(owner: Any) -> dict[str, Any]:
    """Return what can change in a module, a configuration, or a dictionary of parts."""
    return owner if isinstance(owner, dict) else vars(owner)


@contextmanager
def restored(model: nn.Module) -> Iterator[None]:
    """Restore attributes, parts and configurations of a model at the end of the context, if it changed them.

    Some models switch their attention for good on a short text, or store frequencies of positions of a long one.
    Private attributes stay: torch and transformers mark there that a model has hooks, which stay, too.
    """
    owners = [*model.modules(), *configurations(model)]
    owners += [vars(module)[name] for module in model.modules() for name in _PARTS]
    before = [(owner, {**_fields(owner)}) for owner in owners]
    try:
        yield
    finally:
        for owner, old in before:
            fields = _fields(owner)
            for name in {**old, **fields}:
                changed = fields.get(name) is not old.get(name) and (id(owner), name) not in _BEFORE
                if changed and (fields is owner or not name.startswith("_")):
                    if name in old:
                        fields[name] = old[name]
                    else:
                        del fields[name]
