"""Gates between heads and output projection: each row's own factors, which do not depend on what the heads mix."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.models.affine import MATCH
from identilens.models.following import Candidate
from identilens.models.interface import AttentionCall, answered
from identilens.models.threads import only_here

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of an attention module's forward method."""


def gated_candidates(call: AttentionCall, inputs: Inputs) -> Iterator[Candidate]:
    """Yield the modules inside an attention module that read z ∘ g, outermost first; z is what its heads mix.

    g is what is read for z = 1. It does not depend on z: the same g is found with the model's own z and a drawn one.
    """
    own = call.run()
    drawn = torch.randn(own.shape, generator=torch.Generator().manual_seed(0)).to(own)
    ones, *others = (
        (mixed, read_with(call.module, inputs, mixed, call.module.modules()))
        for mixed in (torch.ones_like(own), own, drawn)
    )
    for module, gate in ones[1].items():
        if gate.shape[:2] == own.shape[:2] and gate.numel() == own.numel():
            apart = [
                (read[module] - gate * mixed.view_as(gate)).abs().max() / read[module].abs().max()
                for mixed, read in others
            ]
            if max(apart) <= MATCH[own.dtype]:
                yield Candidate(module, others[0][1][module])


def read_with(
    attention: nn.Module,
    inputs: Inputs,
    mixed: Float[Tensor, "batch query head d_v"],
    modules: Iterable[nn.Module],
) -> dict[nn.Module, Tensor]:
    """Return what some modules read in an attention module whose heads mix what is given; it may change a copy."""
    read: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, given: tuple) -> None:
        if given and isinstance(given[0], Tensor):
            read[module] = given[0]

    with ExitStack() as hooks, torch.no_grad(), answered(lambda _: mixed.clone()):
        for module in modules:
            hooks.enter_context(module.register_forward_pre_hook(only_here(note)))
        # The method itself, so that hooks on the module do not run a second time.
        attention.forward(*inputs[0], **inputs[1])
    return read
