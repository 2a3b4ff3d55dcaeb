"""Turns attention that was followed into calls like those of the attention interface."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, nn
from transformers import PreTrainedModel

from identilens.errors import UnsupportedModelError
from identilens.linalg import FLOAT32_EPS
from identilens.models.eager import eager_attention_forward
from identilens.models.following.follower import Follower, Mixed, Mixture, replay
from identilens.models.interface import AttentionCall, Handler, intercept, next_call

_ROUNDINGS = 4
"""Roundings of logits to the model's precision that do not count as a position bias: product, scale, mask, one more."""
_SUM_ROUNDINGS = 64
"""Roundings to float32, in which products of queries and keys are summed."""


@dataclass(frozen=True)
class Heads:
    """The axis of the heads, among the axes before the last two; it may also include texts before the heads."""

    axis: int
    count: int

    def split(self, tensor: Shaped[Tensor, "*lead a b"]) -> Shaped[Tensor, "batch head a b"]:
        """Return a tensor with one axis for heads, and one for all other leading axes."""
        return (
            tensor.unflatten(self.axis, (-1, self.count)).movedim(self.axis + 1, -3).flatten(0, -4)
        )

    def joined(
        self, tensor: Shaped[Tensor, "batch head a b"], lead: Sequence[int]
    ) -> Shaped[Tensor, "*lead a b"]:
        """Return a result of `split` in its original shape."""
        rest = [*lead[: self.axis], lead[self.axis] // self.count, *lead[self.axis + 1 :]]
        return (
            tensor.unflatten(0, rest).movedim(-3, self.axis + 1).flatten(self.axis, self.axis + 1)
        )


@dataclass(frozen=True)
class Route:
    """Layout of the axes of one followed attention.

    Attributes:
        module: The attention module.
        heads: Axis of the heads in the product of weights and values.
        scores: Axis of the heads in the product of queries and keys.
        turned: Whether that product has the keys on the left.
        number: Number of the product of weights and values in a forward pass.
        total: Number of such products.
        group: Number of heads that share keys and values.
        biased: Whether the logits have terms beside scaled products and masks.
    """

    module: nn.Module
    heads: Heads
    scores: Heads
    turned: bool
    number: int
    total: int
    group: int = 1
    biased: bool = True

    def call(self, mixture: Mixture, index: int) -> AttentionCall:
        """Return the attention call of a mixture."""
        lead = mixture.result.shape[:-2]
        scores: Any = mixture.scores
        hidden = torch.zeros_like(mixture.logits, dtype=torch.bool)
        for mask, before in scores.masks:
            hidden = hidden | replay(mask, scores.moves[before:])
        logits, hidden = (replay(part, mixture.moves) for part in (mixture.logits, hidden))
        logits, hidden, values = (
            self.heads.split(part.expand(*lead, *part.shape[-2:]))
            for part in (logits, hidden, mixture.values)
        )
        query, key = scores.sides(self.turned)
        scaling = scores.factor
        if isinstance(scaling, Tensor):
            query, scaling = query * scaling, 1.0
        query, key = self.scores.split(query), self.scores.split(key)
        # A finite mask on every key of a query hides none: the softmax does not see it.
        hidden = hidden & ~(hidden.all(-1, keepdim=True) & logits.isfinite())
        arguments: dict[str, Any] = {"scaling": float(scaling), "is_causal": False}
        if self.biased:
            exact = torch.promote_types(logits.dtype, torch.float32)
            known = query.to(exact) @ key.to(exact).mT * scaling
            arguments["position_bias"] = (logits.to(exact) - known).masked_fill(hidden, 0.0)
        result = self.heads.split(mixture.result).transpose(1, 2)
        return AttentionCall(
            index,
            self.module,
            query,
            key[:, :: self.group],
            values[:, :: self.group],
            ~hidden,
            arguments,
            lambda *_, **__: (result, result),
            eager_attention_forward,
        )

    def answer(self, mixture: Mixture) -> Tensor:
        """Return the current handler's output for a mixture, in the mixture's layout."""
        handler, index = next_call()
        output = handler(self.call(mixture, index)).transpose(1, 2)
        lead = mixture.result.shape[:-2]
        return self.heads.joined(output, lead).to(mixture.result.dtype)


def read_route(
    module: nn.Module, mixture: Mixture, mixed: Mixed, joined: Tensor, total: int
) -> Route:
    """Return the layout of a mixture's axes, from the places of its entries in the input of the output projection.

    ``total`` is the number of mixtures of the forward pass.

    Raises:
        UnsupportedModelError: If the heads are not concatenated there, or the logits have no queries and keys.
    """
    name, shape = type(module).__name__, mixture.result.shape
    places = replay(_numbered(shape, joined), mixed.moves).flatten(0, -2)
    heads = _heads(torch.unravel_index(places, shape), shape)
    if heads is None:
        raise UnsupportedModelError(
            f"{name} does not put the outputs of its heads side by side before they are projected, so that the heads "
            "have no output projections of their own."
        )
    tried = ((turned, _score_heads(mixture, heads, turned)) for turned in (False, True))
    turned, scores = next((pair for pair in tried if pair[1]), (False, None))
    if scores is None:
        raise UnsupportedModelError(
            f"{name} computes logits that are no products of queries and keys with terms added, so that its heads have "
            "no queries and keys. Choose a model of another family (`identilens selfcheck --list`)."
        )
    route = Route(module, heads, scores, turned, mixture.number, total)
    call = route.call(mixture, 0)
    bias, eps = call.arguments["position_bias"], torch.finfo(call.query.dtype).eps
    size = float((call.query @ call.key.mT).abs().max()) * abs(call.arguments["scaling"])
    limit = (_ROUNDINGS * eps + _SUM_ROUNDINGS * FLOAT32_EPS) * (1 + size)
    shared = (
        group
        for group in range(heads.count, 1, -1)
        if heads.count % group == 0
        and all(
            (side.unflatten(1, (-1, group)) == side[:, ::group, None]).all()
            for side in (call.key, call.value)
        )
    )
    return replace(
        route,
        biased=float(bias.abs().max()) > limit,
        group=next(shared, 1),
    )


def _numbered(shape: Sequence[int], like: Tensor) -> Int[Tensor, "*shape"]:
    return torch.arange(torch.Size(shape).numel(), device=like.device).view(shape)


def _heads(places: tuple[Tensor, ...], shape: Sequence[int]) -> Heads | None:
    """Return the axis of the heads, from the original coordinates of the entry at each [row, channel]."""
    *lead, query, value = places
    channels = torch.arange(value.shape[1], device=value.device)
    if not (value == channels % shape[-1]).all() or (query != query[:, :1]).any():
        return None
    return _along(
        lead,
        shape,
        channels // shape[-1],
        value.shape[1] // shape[-1],
    )


def _along(
    places: Sequence[Tensor], shape: Sequence[int], head: Tensor, count: int
) -> Heads | None:
    """Return the axis along which entries are those of their heads, from their coordinates."""
    for axis, index in enumerate(places):
        if shape[axis] % count == 0 and (index % count == head).all():
            return Heads(axis, count)
    return None


def _score_heads(mixture: Mixture, heads: Heads, turned: bool) -> Heads | None:
    """Return the axis of the heads in the product of queries and keys; None if the product does not give the logits."""
    scores = mixture.scores
    if scores is None:
        return None
    queries, keys = scores.sides(turned)
    shape = (*queries.shape[:-1], keys.shape[-2])
    numbers = _numbered(shape, mixture.logits)
    try:
        places = replay(numbers.mT if turned else numbers, scores.moves)
        places = heads.split(replay(places, mixture.moves))
    except (RuntimeError, IndexError):
        return None
    *leading, query, key = torch.unravel_index(places, shape)
    axes = [torch.arange(size, device=key.device) for size in places.shape]
    if not ((key == axes[3]) & (query == axes[2][:, None])).all():
        return None
    return _along(leading, shape, axes[1][:, None, None], heads.count)


@contextmanager
def capturing(
    model: PreTrainedModel,
    handler: Handler,
    routes: Mapping[int, Route],
    *,
    task_head: bool = False,
) -> Iterator[None]:
    """Send every attention call to ``handler`` inside the context: see `intercept`.

    Attention that the model computes by itself is followed if ``routes`` has its number in the forward pass. A pass of
    the model with its ``task_head`` must multiply as often as the one in which routes were found.
    """
    if not routes:
        with intercept(model, handler):
            yield
        return

    def answer(mixture: Mixture) -> Tensor | None:
        return routes[mixture.number].answer(mixture) if mixture.number in routes else None

    follower = Follower(model, answer)
    with intercept(model, follower.undisturbed(handler)), follower:
        yield
    expected = max(route.total for route in routes.values())
    if task_head and follower.count != expected:
        raise UnsupportedModelError(
            f"{type(model).__name__} multiplies weights with values {follower.count} times on this input, and "
            f"{expected} times on the start of the first: its layers depend on the length. Give texts of one length, "
            "or choose a model of another family (`identilens selfcheck --list`)."
        )
