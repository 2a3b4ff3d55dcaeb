"""Whether a layer mixes positions by more than its attention: a state space, a convolution or a pooling beside it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from transformers import Cache, PreTrainedModel

from identilens.models.interface import AttentionCall, evaluation_mode
from identilens.models.routes import capturing
from identilens.models.watching import LayerRun, Meeting

_PUSH = 4.0
"""How far one position is moved, in standard deviations of the layer's input."""
_ROUNDINGS = 8
"""Roundings by which other positions may change: experts that get other positions sum in another order."""


@torch.no_grad()
def mixes_otherwise(model: PreTrainedModel, run: LayerRun, meetings: Sequence[Meeting]) -> bool:
    """Whether a layer's output changes at other positions when one position of its input moves and attention does not.

    The outputs of its attention (``meetings``, in call order) are held as they were. The values that it mixes must not
    change at other positions either.
    """
    with evaluation_mode(model):
        held = [meeting.call.run() for meeting in meetings]
    routes = {
        one.mixture.number - run.first: replace(one.route, total=0)
        for one in meetings
        if one.mixture and one.route
    }
    given = tree_map(lambda value: None if isinstance(value, Cache) else value, run.inputs)
    states = _states(given)
    if states is None:
        return False
    axes = _positions(states, meetings[0].call)
    if not axes:
        return False
    values: list[Tensor] = []

    def hold(call: AttentionCall) -> Tensor:
        values.append(call.value)
        return held[call.index]

    def output(changed: Tensor) -> Tensor:
        args, kwargs = tree_map(lambda value: changed if value is states else value, given)
        with capturing(model, hold, routes):
            return _states(run.module(*args, **kwargs))

    moved = states.clone()
    first = moved.movedim(axes, tuple(range(len(axes))))
    middle = tuple(size // 2 for size in first.shape[: len(axes)])
    push = torch.randn(first[middle].shape, generator=torch.Generator().manual_seed(0)).to(states)
    first[middle] += _PUSH * states.float().std().to(states) * push
    before, after = output(states), output(moved)
    if any(before.shape[axis] != states.shape[axis] for axis in axes):
        return True
    if _changes(before, after, axes, middle):
        return True
    # Values of windows, or of other positions than the layer's, are left out.
    sizes = tuple(states.shape[axis] for axis in axes)
    return any(
        _changes(value, other, (2,), middle)
        for value, other in zip(values, values[len(held) :], strict=False)
        if len(value) == 1 and (value.shape[2],) == sizes
    )


def _changes(before: Tensor, after: Tensor, axes: tuple[int, ...], middle: tuple[int, ...]) -> bool:
    """Whether anything changes at other positions than the one in the middle."""
    change = (
        (after - before).abs().movedim(axes, tuple(range(len(axes)))).flatten(len(axes)).amax(-1)
    )
    change[middle] = 0
    return float(change.max()) > _ROUNDINGS * torch.finfo(after.dtype).eps * float(
        after.abs().max()
    )


def _states(values: Any) -> Any:
    """Return the first tensor of hidden states among inputs or outputs of a layer."""
    tensors = (
        one for one in tree_leaves(values) if isinstance(one, Tensor) and one.is_floating_point()
    )
    return next((one for one in tensors if one.ndim >= 3), None)


def _positions(states: Tensor, call: AttentionCall) -> tuple[int, ...]:
    """Return the axes of positions: beside a single text, of the size of the queries, or height and width."""
    if states.ndim == 3 and 1 in states.shape[:2]:
        return (1,) if states.shape[0] == 1 else (0,)
    same = [axis for axis, size in enumerate(states.shape[:-1]) if size == call.query.shape[2]]
    if len(same) == 1:
        return (same[0],)
    one, two, three = states.shape[-3:]
    if states.ndim != 4 or (one == two) == (two == three):
        return ()
    return (2, 3) if two == three else (1, 2)
