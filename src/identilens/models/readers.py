"""Check that heads reach the output of their block through the output projection alone."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from identilens.models.affine import MATCH
from identilens.models.following import Meeting, ParameterProjection, capturing
from identilens.models.interface import AttentionCall, evaluation_mode, without_cache
from identilens.models.threads import hooked


@dataclass
class Passage:
    """What an output projection gives in one run of its block, and what leaves the block.

    The block ends where its output is normalised, as after a residual connection, or at its last module.
    """

    projected: Tensor | None = None
    left: Tensor | None = None

    @property
    def size(self) -> float:
        """The largest number that passes."""
        return max(float(one.abs().max()) for one in (self.projected, self.left) if one is not None)

    def to(self, other: "Passage") -> list[Tensor | None]:
        """Return by how much what is projected and what leaves change to another run, in ascending order.

        The block may put positions in another order.
        """
        pairs = (self.projected, other.projected), (self.left, other.left)
        return [
            None if one is None or two is None else (two - one).double().flatten().sort().values
            for one, two in pairs
        ]

    def projecting(self, module: nn.Module, inputs: tuple, kwargs: dict, output: Any) -> None:
        """Record the output of the projection; some families call it for several parts of the positions."""
        before = [] if self.projected is None else [self.projected]
        self.projected = torch.cat([*before, output.flatten()])

    def normalising(self, module: nn.Module, inputs: tuple, kwargs: dict) -> None:
        """Record what the first norm after the projection reads."""
        if self.projected is not None and self.left is None:
            self.left = inputs[0]

    def leaving(self, module: nn.Module, inputs: tuple, kwargs: dict, output: Any) -> None:
        """Record the output of the block."""
        tensors = (one for one in tree_leaves(output) if isinstance(one, Tensor))
        if self.left is None:
            self.left = next(tensors, None)


def adds_up(
    model: PreTrainedModel,
    projection: nn.Module,
    meeting: Meeting,
    meetings: Sequence[Meeting],
    forward: Callable[[], Any],
) -> bool:
    """Return whether a block's output changes by what its output projection gives, if its heads mix something else.

    It does not if another map reads the outputs of the heads (a gate or a side branch), or if the block changes the
    projected sum by more than adding what does not depend on it. ``forward`` runs the model, with all ``meetings``.
    Outputs that are no numbers say nothing, and are refused by the proof.
    """
    layer = meeting.layer
    if isinstance(projection, ParameterProjection) or projection in {*meeting.module.modules()}:
        block = meeting.module
        run = partial(_again, meeting.module, meeting.inputs)
        same = [one for one in meetings if one.inputs[1] is meeting.inputs[1]]
    else:
        block = next(one for one in model.modules() if projection in {*one.children()})
        run = forward if layer is None else partial(_again, layer.module, layer.inputs)
        same = [one for one in meetings if layer is None or one.layer is layer]
    with evaluation_mode(model):
        own = meeting.call.run()
    if not bool(own.isfinite().all()):
        return True
    drawn = 4 * torch.randn(own.shape, generator=torch.Generator().manual_seed(1)).to(own)
    ends = block if layer is None or block is not layer.module else None
    before, after = (
        _passage(model, run, (block, projection, ends), same, {id(meeting): mixed})
        for mixed in (own, drawn)
    )
    given, left = before.to(after)
    if given is None or left is None:
        # The layer itself projects, and normalises nothing afterwards.
        return True
    limit = max(MATCH[own.dtype], MATCH[torch.float32]) * max(before.size, after.size)
    return given.shape == left.shape and float((given - left).abs().max()) <= limit


def _again(module: nn.Module, inputs: tuple) -> None:
    """Run a module on its inputs, without a cache of earlier tokens."""
    args, kwargs = without_cache(inputs)
    module(*args, **kwargs)


@torch.no_grad()
def _passage(
    model: PreTrainedModel,
    run: Callable[[], Any],
    watched: tuple[nn.Module, nn.Module, nn.Module | None],
    meetings: Sequence[Meeting],
    mixed: Mapping[int, Tensor],
) -> Passage:
    """Return what passes a block whose heads mix what is given; other attention stays as it was.

    ``watched`` are the block, its projection, and the module at whose output it ends, if its last norm is none.
    """
    passage, (block, projection, ends) = Passage(), watched
    numbers = [one.mixture.number for one in meetings if one.mixture]
    routes = {
        one.mixture.number - numbers[0]: one.route for one in meetings if one.mixture and one.route
    }

    def answer(call: AttentionCall) -> Tensor:
        meeting = meetings[call.index]
        return mixed[id(meeting)].clone() if id(meeting) in mixed else meeting.call.run()

    parameters = [projection] if isinstance(projection, ParameterProjection) else []
    norms = [one for one in block.modules() if "Norm" in type(one).__name__]
    with (
        capturing(model, answer, routes, parameters),
        hooked(norms, passage.normalising),
        hooked([projection], after=passage.projecting),
        hooked([ends] if ends else [], after=passage.leaving),
    ):
        run()
    return passage
