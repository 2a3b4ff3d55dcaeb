"""The parameters that make the queries and keys of a group of heads and nothing else, and what others would give."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from identilens.errors import UnsupportedModelError
from identilens.linalg import relative_tolerance
from identilens.linalg.decompositions import svd
from identilens.linalg.softmax import attention_logits
from identilens.measures.attention.realisable.dimension import generic_dimension, nested
from identilens.measures.attention.realisable.tied import TiedHeads
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.projections import refuse_shared, replaced_modules
from identilens.models.replaying import Replay

_MATCH, _ROUNDINGS = 1e-4, 32
"""A module run again gives the head's weights up to this error and so many roundings of the model's precision."""


@dataclass(frozen=True, eq=False)
class _Part:
    """Entries of one parameter that move, as coordinates.

    Attributes:
        name: Path of the parameter in the attention module.
        places: Rows of a linear map, or entries of another parameter (flattened).
        start: The coordinates of the parameter itself.
        back: For a linear map, what makes a change of its rows from a change of the coordinates.
        axis: For a linear map, the axis of its inputs.
    """

    name: str
    places: Tensor
    start: Tensor
    back: Float[Tensor, "e d_in"] | None = None
    axis: int | None = None

    def changed(self, parameter: Tensor, coordinates: Tensor) -> Tensor:
        """Return the parameter with other coordinates."""
        move = coordinates.view_as(self.start) - self.start
        if self.back is None or self.axis is None:
            return parameter.flatten().index_add(0, self.places, move).view_as(parameter)
        move = move @ self.back
        return parameter.index_add(1 - self.axis, self.places, move if self.axis else move.mT)

    def own(self, parameter: Tensor) -> Tensor:
        """Return the entries of the parameter that move."""
        flat = parameter.flatten() if self.axis is None else parameter
        return flat.index_select(0 if self.axis is None else 1 - self.axis, self.places)


@dataclass(frozen=True)
class GroupParameters:
    """The parameters from which only the heads of a group take their queries and keys.

    The heads of a group share keys. Parameters that values, other heads or other layers use as well stay as they are:
    the latent vectors of keys and values, the turned part of the keys that all heads share (DeepSeek), norms of all
    heads' queries, tables of position biases that are handed on to other layers.

    Attributes:
        head: The head that is looked at.
        replay: Its attention module.
        parts: What moves. Linear maps move as far as the inputs of the text reach, in coordinates in which their
            inputs are orthonormal.
    """

    head: Head
    replay: Replay
    parts: Sequence[_Part]

    @property
    def start(self) -> Float[Tensor, " parameter"]:
        """Coordinates of the model's own parameters."""
        return torch.cat([part.start.flatten() for part in self.parts])

    def tied(self) -> TiedHeads:
        """Return the heads of the group as a function of the coordinates."""
        head = self.head
        rows, visible = len(head.queries), head.visible
        seen = torch.ones(rows, len(head.keys), dtype=torch.bool)
        kept: list[Tensor] = []
        for one in _heads(head):
            kept += replace(head, head=one).projected.output_bases(rows, visible)
        place = head.head % head.group
        return TiedHeads(
            self.logits,
            self.start,
            (seen if visible is None else visible).repeat(head.group, 1),
            tuple(kept),
            slice(place * rows, (place + 1) * rows),
        )

    def formula(self, tied: TiedHeads) -> int | None:
        """Return the generic dimension if the parameters can make any queries and keys of the text, else None.

        The heads of the group then are like one head with the queries of all of them. Linear maps can make any if the
        inputs of the text are independent: those of repeated tokens are not, and biases make up for none.
        """
        head, generator = self.head, torch.Generator().manual_seed(0)
        reached = sum(part.start.numel() for part in self.parts if part.back is not None)
        sizes = (head.group * head.queries.numel() + head.keys.numel(), reached)
        if (
            head.softcap is not None
            or not head.bias_fixed
            or sizes[0] > sizes[1]
            or not nested(tied.visible)
        ):
            return None
        move = torch.randn(self.start.shape, generator=generator, dtype=torch.float64).to(
            self.start
        )
        first, here, last = (
            torch.cat(self.queries_and_keys(self.start + step * move)) for step in (-1, 0, 1)
        )
        if not torch.allclose(
            first + last, 2 * here, rtol=1e-9, atol=1e-9 * float(here.abs().max())
        ):
            return None
        return generic_dimension(
            tied.visible.sum(-1).tolist(), head.d_k, [one.shape[1] for one in tied.kept]
        )

    def logits(self, coordinates: Float[Tensor, " parameter"]) -> Float[Tensor, "row key"]:
        """Return the logits of all heads of the group, with these coordinates."""
        return _logits(self.replay.call(self.parameters(coordinates)), _heads(self.head), self.head)

    def queries_and_keys(self, coordinates: Float[Tensor, " parameter"]) -> tuple[Tensor, Tensor]:
        """Return Q and K of the head that is looked at, with these coordinates."""
        call = self.replay.call(self.parameters(coordinates))
        return call.query[0, self.head.head].detach(), call.key[
            0, self.head.head // self.head.group
        ].detach()

    def parameters(self, coordinates: Float[Tensor, " parameter"]) -> dict[str, Tensor]:
        """Return the parameters that these coordinates stand for, by path."""
        split = coordinates.split([part.start.numel() for part in self.parts])
        return {
            part.name: part.changed(self.replay.module.get_parameter(part.name).detach(), own)
            for part, own in zip(self.parts, split, strict=True)
        }

    def moved(self, coordinates: Float[Tensor, " parameter"]) -> dict[str, float]:
        """Return ‖W' − W‖_F / ‖W‖_F of the entries that move, by path."""
        new, norm = self.parameters(coordinates), torch.linalg.vector_norm
        old = {part: self.replay.module.get_parameter(part.name).detach() for part in self.parts}
        return {
            part.name: float(norm(new[part.name] - one) / norm(part.own(one)).clamp_min(1e-300))
            for part, one in old.items()
        }

    @contextmanager
    def changed(self, lens: Lens, coordinates: Float[Tensor, " parameter"]) -> Iterator[None]:
        """Run the model with these coordinates inside the context; its own parameters do not change."""
        attention = lens.body.get_submodule(self.head.site.name)
        copies: dict[nn.Module, nn.Module] = {}
        for name, new in self.parameters(coordinates).items():
            owner = attention.get_submodule(name.rpartition(".")[0])
            other = copies.setdefault(owner, copy.deepcopy(owner))
            with torch.no_grad():
                other.get_parameter(name.rpartition(".")[2]).copy_(new)
        with replaced_modules(copies):
            yield


def group_parameters(lens: Lens, item: Item, head: Head) -> GroupParameters:
    """Return the parameters from which only the heads of a group take their queries and keys, found by gradients.

    Raises:
        UnsupportedModelError: If there are none, several layers share them, or the module cannot be run again.
    """
    refuse_shared(lens, item, head)
    replay = Replay.of(lens, item, head.site)
    parameters = {
        name: one.detach().requires_grad_() for name, one in replay.module.named_parameters()
    }
    ran, heads = replay.run(parameters), _heads(head)
    parameters = {
        name: one for name, one in parameters.items() if name.rpartition(".")[0] in ran.inputs
    }
    others = [one for one in range(ran.call.query.shape[1]) if one not in heads]
    rest = [*ran.rest, ran.call.value, *([_logits(ran.call, others, head)] if others else [])]
    felt, used = _touched([_logits(ran.call, heads, head)], parameters), _touched(rest, parameters)
    found = {}
    for name, mine in felt.items():
        axis = _input_axis(replay.module, name)
        both = (mine, used[name]) if axis is None else (mine.any(axis), used[name].any(axis))
        places = (both[0] & ~both[1]).flatten().nonzero()[:, 0]
        if len(places):
            found[name] = places
    group = GroupParameters(head, replay, _parts(replay, found))
    what = f"{head.site.kind} layer {head.site.layer}, head {head.head}"
    if not group.parts:
        raise UnsupportedModelError(
            f"{what}: no parameters make the queries and keys of its group and nothing else"
        )
    tied, limit = group.tied(), _MATCH + _ROUNDINGS * torch.finfo(head.queries.dtype).eps
    if not bool(((tied.weights(group.start)[tied.rows] - head.attention).abs() <= limit).all()):
        raise UnsupportedModelError(
            f"{what}: its attention module gives other weights when it is run alone"
        )
    return group


def _heads(head: Head) -> range:
    first = head.head - head.head % head.group
    return range(first, first + head.group)


def _logits(call: AttentionCall, heads: Sequence[int], head: Head) -> Float[Tensor, "row key"]:
    bias = call.bias
    shape = (call.query.shape[2], call.key.shape[2])
    return torch.cat(
        [
            attention_logits(
                call.query[0, one],
                call.key[0, one // head.group],
                head.scaling,
                None if bias is None else bias[0, one if bias.shape[1] > 1 else 0].expand(shape),
                head.softcap,
            )
            for one in heads
        ]
    )


def _touched(outputs: Sequence[Tensor], parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return which entries of parameters some outputs depend on."""
    generator = torch.Generator().manual_seed(0)
    total = sum(
        (one * torch.randn(one.shape, generator=generator, dtype=torch.float64).to(one)).sum()
        for one in outputs
        if one.requires_grad
    )
    if not isinstance(total, Tensor):
        return {name: torch.zeros_like(one, dtype=torch.bool) for name, one in parameters.items()}
    gradients = torch.autograd.grad(
        total, list(parameters.values()), retain_graph=True, materialize_grads=True
    )
    return {name: one != 0 for name, one in zip(parameters, gradients, strict=True)}


def _parts(replay: Replay, owned: Mapping[str, Tensor]) -> list[_Part]:
    """Return coordinates of the parameters that move."""
    inputs = replay.run(
        {name: replay.module.get_parameter(name).detach().requires_grad_() for name in owned}
    ).inputs
    parts = []
    for name, places in owned.items():
        own, axis = replay.module.get_parameter(name).detach(), _input_axis(replay.module, name)
        if axis is None:
            parts.append(_Part(name, places, own.flatten()[places]))
            continue
        rows, given = own.index_select(1 - axis, places), inputs[name.rpartition(".")[0]]
        rows = rows.mT if axis == 0 else rows
        if given.requires_grad:  # the inputs of this map move, too
            across = back = torch.eye(rows.shape[1], dtype=rows.dtype, device=rows.device)
        else:
            across, back = _reach(given.reshape(-1, given.shape[-1]))
        parts.append(_Part(name, places, rows @ across, back, axis))
    return parts


def _reach(inputs: Float[Tensor, "position d_in"]) -> tuple[Tensor, Tensor]:
    """Return V S and S⁻¹ Vᵀ of inputs U S Vᵀ: coordinates in which the inputs are the orthonormal U."""
    _, sigma, right = svd(inputs.detach())
    rank = int((sigma > relative_tolerance(*inputs.shape) * sigma.max()).sum())
    return right[:rank].mT * sigma[:rank], right[:rank] / sigma[:rank, None]


def _input_axis(module: nn.Module, name: str) -> int | None:
    """Return the axis of a weight that belongs to the inputs of its linear map; None for other parameters."""
    owner = module.get_submodule(name.rpartition(".")[0])
    if not isinstance(owner, nn.Linear | Conv1D) or module.get_parameter(name).ndim != 2:
        return None
    return 0 if isinstance(owner, Conv1D) else 1
