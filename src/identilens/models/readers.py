"""Check that heads reach the output of their block through the output projection alone."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel

from identilens.linalg.memory import wide
from identilens.models.affine import MATCH, drawn_like
from identilens.models.following import Meeting, capturing, routes_among
from identilens.models.interface import AttentionCall, evaluation_mode
from identilens.models.threads import Inputs, hooked


@torch.no_grad()
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
    layer, block = meeting.layer, meeting.module
    if projection not in {*block.modules()}:
        block = next(part for part in model.modules() if projection in {*part.children()})
    same = [met for met in meetings if layer is None or met.layer is layer]
    ends = [block] if layer is None or block is not layer.module else []
    norms = [norm for norm in block.modules() if "Norm" in type(norm).__name__]

    def passage(mixed: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return what the projection gives and what leaves the block before its norm, if anything leaves it."""
        projected, left = [], []

        def project(_module: nn.Module, _inputs: Inputs, output: Any) -> None:
            # Some families call it for several parts of the positions, or the block once more.
            if not left:
                projected.append(output.flatten())

        def leave(_module: nn.Module, inputs: Inputs, *output: Any) -> None:
            leaves = (leaf for leaf in tree_leaves(output or inputs[0]) if isinstance(leaf, Tensor))
            left.extend(leaf for leaf in leaves if projected)

        def answer(call: AttentionCall) -> Tensor:
            changed = same[call.index] is meeting
            if changed and left:  # of another call of the block
                del projected[:], left[:]
            return mixed.clone() if changed else same[call.index].call.run()

        with (
            capturing(model, answer, routes_among(same)),
            hooked(norms, leave),
            hooked([projection], after=project),
            hooked(ends, after=leave),
        ):
            if layer:
                layer.module(*layer.inputs[0], **layer.inputs[1])
            else:
                forward()
        return (torch.cat(projected), left[0]) if left else None

    with evaluation_mode(model):
        plain = meeting.call.run()
    if not plain.isfinite().all():
        return True
    before, after = passage(plain), passage(4 * drawn_like(plain))
    if before is None or after is None:
        # The layer itself projects, and normalises nothing afterwards.
        return True
    # The block may put positions in another order.
    inner, left = (
        wide(new - old).flatten().sort().values for old, new in zip(before, after, strict=True)
    )
    size = max(float(part.abs().max()) for part in (*before, *after))
    limit = max(MATCH[plain.dtype], MATCH[torch.float32]) * size
    return inner.shape == left.shape and float((inner - left).abs().max()) <= limit
