"""Checks that capture is faithful on a user's own model: the proof of every run, and two of this command alone."""

from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from identilens.errors import JoinedTextsError
from identilens.models.capture import Lengths
from identilens.models.gates import scale_of
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.outputs import deviation, relative
from identilens.models.proof import NOISE, Check, HeadsSum, by_text, projections_watched


@torch.no_grad()
def selfcheck(lens: Lens, texts: Any, max_length: int | None = None) -> list[Check]:
    """Return the checks of a model on some texts: capture changes nothing, and heads explain the block.

    Raises:
        UnsupportedModelError: If the attention cannot be captured at all.
    """
    items = lens.read(texts, max_length)
    try:
        checks = _checks(lens, items)
    except JoinedTextsError:
        checks = [check for item in items for check in _checks(lens, [item])]
    worst: dict[str, Check] = {}
    for check in checks:
        before = worst.get(check.name)
        # Nothing is worse than a figure that is not a number.
        if before is None or isnan(check.figure) or check.figure > before.figure:
            worst[check.name] = check
    return list(worst.values())


def _checks(lens: Lens, items: list[Item]) -> list[Check]:
    checks = lens.prove(items)
    if not all(check.passed for check in checks):
        return [*checks]
    noise, lengths = NOISE[lens.dtype], Lengths(items)
    whole, blocks = lens.run(items, lambda call: call.attend()[0]), lens.run(items, _in_blocks)
    streamed = deviation(whole, blocks, lengths, items)
    deviating, final = _changed(lens, items, whole)
    remark = f"relative to the block, against what its heads predict; uniform weights change the output by {final:.1e}"
    return [
        *checks,
        Check("outputs unchanged in blocks of rows", streamed, noise, "relative"),
        Check("changing the weights changes the output", deviating, noise, remark),
    ]


def _in_blocks(call: AttentionCall) -> Tensor:
    n = call.query.shape[-2]
    return torch.cat(
        [call.attend(slice(start, min(start + 3, n)))[0] for start in range(0, n, 3)], 1
    )


def _uniform(call: AttentionCall) -> Tensor:
    values = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)
    visible = call.visible()
    if visible is None:
        return values.mean(2)[:, None].expand(-1, call.query.shape[-2], -1, -1).contiguous()
    weights = visible.to(values.dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
    return (weights[:, None] @ values).transpose(1, 2).contiguous()


def _changed(lens: Lens, items: list[Item], before: Any) -> tuple[float, float]:
    """Return how far the blocks' outputs under uniform weights are from what the heads' projections predict.

    Models on which weights have little effect pass too: their blocks change as little as predicted. The second number
    is the change of the model's output.
    """
    sites, lengths = lens.sites(items[0]), Lengths(items)
    pending: list[tuple[AttentionCall, Tensor]] = []
    deviations: list[float] = []

    def answer(call: AttentionCall) -> Tensor:
        pending[:] = [(call, _uniform(call))]
        return pending[0][1]

    def projected(module: nn.Module, inputs: tuple, output: Any) -> None:
        if not pending or sites[pending[0][0].index].projection is not module:
            return
        call, changed = pending.pop()
        site = sites[call.index]
        blocks = by_text(output, call, site).double()
        summed, gate = HeadsSum(site), call.gate
        if gate is not None:
            changed = changed * gate
            changed = (
                changed * scale_of(inputs[0].view_as(changed), changed) if site.normed else changed
            )
        for text in range(len(items)):
            rows = slice(lengths.of(text, site.kind, call)[0])
            deviations.append(relative(summed(changed[text, rows]), blocks[text, rows]))

    with projections_watched(sites, projected):
        after = lens.run(items, answer, changes=True)
    return max(deviations), deviation(before, after, lengths, items)
