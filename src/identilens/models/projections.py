"""The parameters that give one head's queries and keys, and their replacement."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from identilens.errors import UnsupportedModelError
from identilens.measures.attention.projections import changed_projection
from identilens.models.explaining import refuse_offloaded
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.threads import only_here

_MATCH = 1e-4
"""Largest relative difference between a projection's output and the head's queries or keys."""


@dataclass(frozen=True)
class HeadProjection:
    """The rows of a linear layer that give one head's queries or keys.

    ``factor`` multiplies the outputs before the dot product; ``inputs`` is the input of the layer.
    """

    module: nn.Module
    rows: slice
    factor: float
    inputs: Float[Tensor, "position d_model"]

    @property
    def weight(self) -> Float[Tensor, "d_k d_model"]:
        """The rows of the weight, in the form of ``torch.nn.Linear``."""
        weight = self.module.get_parameter("weight").detach().cpu()
        return (weight.T if isinstance(self.module, Conv1D) else weight)[self.rows]

    @property
    def bias(self) -> Float[Tensor, " d_k"] | None:
        """The rows of the bias."""
        bias = getattr(self.module, "bias", None)
        return None if bias is None else bias.detach().cpu()[self.rows]


def query_key_projections(
    lens: Lens, item: Item, head: Head
) -> tuple[HeadProjection, HeadProjection]:
    """Return the parameters that give a head's queries and keys on a text.

    They are found by their output, so separate and fused layers need no knowledge of the family.

    Raises:
        UnsupportedModelError: If there is an operation between the projection and the dot product (a rotation, a
            norm), or if several heads or layers share the parameters.
    """
    what = f"{head.site.kind} layer {head.site.layer}, head {head.head}"
    if head.group > 1:
        raise UnsupportedModelError(
            f"{what}: its keys serve {head.group} query heads, so other key parameters would change the other heads too"
        )
    refuse_shared(lens, item, head)
    attention = lens.body.get_submodule(head.site.name)
    refuse_offloaded(attention)
    seen: list[tuple[nn.Module, Tensor, Tensor]] = []

    def listen(module: nn.Module, inputs: tuple, output: Tensor) -> None:
        seen.append((module, inputs[0].detach().cpu(), output.detach().cpu()))

    with ExitStack() as hooks:
        for module in attention.modules():
            if isinstance(module, nn.Linear | Conv1D):
                hooks.enter_context(module.register_forward_hook(listen))
        lens.run([item])
    matching = [_matching(seen, target) for target in (head.queries, head.keys)]
    if matching[0] is None or matching[1] is None:
        raise UnsupportedModelError(
            f"{what}: its queries or keys are changed after their projection (rotary positions, a norm), so that no "
            "single linear layer gives them"
        )
    return matching[0], matching[1]


def refuse_shared(lens: Lens, item: Item, head: Head) -> None:
    """Raise if several layers take their queries and keys from the same parameters.

    Raises:
        UnsupportedModelError: If they do.
    """
    if sum(site.name == head.site.name for site in lens.sites(item)) > 1:
        raise UnsupportedModelError(
            f"{head.site.kind} layer {head.site.layer}, head {head.head}: several layers share its parameters, so all "
            "of them would change"
        )


@contextmanager
def changed_parameters(
    changes: Sequence[
        tuple[HeadProjection, Float[Tensor, "d_k d_model"], Float[Tensor, " d_k"] | None]
    ],
) -> Iterator[None]:
    """Run the model with other weights and biases in the rows of projections, inside the context.

    Copies of the layers are used, in this thread only: the model's own parameters do not change.
    """
    modules = {projection.module: copy.deepcopy(projection.module) for projection, _, _ in changes}
    with torch.no_grad(), ExitStack() as hooks:
        for projection, weight, bias in changes:
            target = modules[projection.module].get_parameter("weight")
            linear = target.T if isinstance(projection.module, Conv1D) else target
            linear[projection.rows] = weight.to(target)
            if bias is not None:
                modules[projection.module].get_parameter("bias")[projection.rows] = bias.to(target)
        hooks.enter_context(replaced_modules(modules))
        yield


@contextmanager
def replaced_modules(changed: Mapping[nn.Module, nn.Module]) -> Iterator[None]:
    """Let others compute the outputs of some modules inside the context, in this thread only."""
    with ExitStack() as hooks:
        for module, other in changed.items():
            hook = only_here(lambda _module, inputs, _output, other=other: other(*inputs))
            hooks.enter_context(module.register_forward_hook(hook))
        yield


@contextmanager
def remade_projections(
    lens: Lens,
    item: Item,
    head: Head,
    queries: Float[Tensor, "query d_k"],
    keys: Float[Tensor, "key d_k"],
) -> Iterator[dict[str, float]]:
    """Run the model with parameters that give one head other queries and keys on a text, inside the context.

    Yields ‖W' − W‖_F / ‖W‖_F of W_Q and W_K. The model's own parameters do not change.

    Raises:
        UnsupportedModelError: As `query_key_projections`.
        InputError: If no parameters give them.
    """
    changes, moved = [], {}
    for name, source, goal in zip(
        ("W_Q", "W_K"), query_key_projections(lens, item, head), (queries, keys), strict=True
    ):
        found = changed_projection(source.inputs, goal / source.factor, source.weight, source.bias)
        changes.append((source, found.weight, found.bias))
        moved[name] = found.change
    with changed_parameters(changes):
        yield moved


def _matching(
    seen: Sequence[tuple[nn.Module, Tensor, Tensor]], target: Tensor
) -> HeadProjection | None:
    size = target.shape[-1]
    goal = target.double()
    for module, inputs, output in seen:
        flat = output.reshape(-1, output.shape[-1]).double()
        if len(flat) != len(goal):
            continue
        for start in range(0, flat.shape[1] - size + 1, size):
            rows = slice(start, start + size)
            block = flat[:, rows]
            factor = float((block * goal).sum() / (block * block).sum().clamp_min(1e-300))
            if float(torch.linalg.vector_norm(factor * block - goal)) <= _MATCH * float(
                torch.linalg.vector_norm(goal)
            ):
                return HeadProjection(module, rows, factor, inputs.reshape(-1, inputs.shape[-1]))
    return None
