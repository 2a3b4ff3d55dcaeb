"""Gates and norms between heads and output projection: what multiplies each row of the heads' outputs."""

from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.models.affine import MATCH, drawn_like
from identilens.models.following import Candidate
from identilens.models.interface import AttentionCall, answered, scale_of
from identilens.models.threads import Inputs, first_input, hooked


def gated_candidates(call: AttentionCall, inputs: Inputs) -> Iterator[Candidate]:
    """Yield the modules inside an attention module that read z ∘ g, outermost first.

    z is what its heads mix, g what is read for z = 1. The same g is found with the model's own z and a drawn one: up to
    a factor of each row and head, where a norm divides by a length of z.
    """
    z = call.run()
    # Families compute norms in float32.
    limit = max(MATCH[z.dtype], MATCH[torch.float32])
    # Its length is not that of ones.
    drawn = 4 * drawn_like(z)
    ones, *others = (
        (mixed, read_with(call.module, inputs, mixed, call.module.modules()))
        for mixed in (torch.ones_like(z), z, drawn)
    )
    for module, gate in ones[1].items():
        if gate.shape[:2] == z.shape[:2] and gate.numel() == z.numel():
            apart = []
            for mixed, read in others:
                actual, plain = read[module].view_as(z), gate.view_as(z) * mixed
                for flat in (plain, plain * scale_of(actual, plain)):
                    apart.append((actual - flat).abs().max() / actual.abs().max())
            if max(apart[1::2]) <= limit:
                normed = bool(max(apart) > limit)
                yield Candidate(module, others[0][1][module], normed=normed)


def read_with(
    attention: nn.Module,
    inputs: Inputs,
    mixed: Float[Tensor, "batch query head d_v"],
    modules: Iterable[nn.Module],
) -> dict[nn.Module, Tensor]:
    """Return what some modules read in an attention module whose heads mix what is given; it may change a copy."""
    read: dict[nn.Module, Tensor] = {}

    def note(module: nn.Module, inputs: Inputs) -> None:
        states = first_input(inputs)
        if isinstance(states, Tensor):
            read[module] = states

    with torch.no_grad(), answered(lambda _: mixed.clone()), hooked(modules, note):
        # The method itself, so that hooks on the module do not run a second time.
        attention.forward(*inputs[0], **inputs[1])
    return read
