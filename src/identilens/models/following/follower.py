"""Following attention that a model computes by itself: softmax, product with the values, output projection."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from operator import attrgetter
from typing import Any, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from identilens.models.following.steps import (
    attention_in_steps,
    einsum_in_steps,
    multi_head_attention,
)

R = TypeVar("R")

_PRODUCTS = frozenset(("matmul", "__matmul__", "bmm", "baddbmm"))
_SHAPES = frozenset((
    "view", "reshape", "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis",
    "flatten", "unflatten", "squeeze", "unsqueeze", "view_as", "reshape_as", "mT", "T",
    "getitem",
))  # fmt: skip
_SAME = frozenset((
    "contiguous", "clone", "detach", "to", "type_as", "type", "float", "half", "bfloat16",
    "double", "dropout",
))  # fmt: skip
_MASKS = frozenset(("masked_fill", "where", "mul"))
"""Operations that weights may pass; a check proves that they are still a softmax of the logits."""
_TERMS = frozenset((
    "add", "sub", "masked_fill", "where", "max", "maximum", "min", "minimum", "clamp",
    "nan_to_num", "mul", "div",
))  # fmt: skip
_NEAR_ONE = 1e-2
_RANKED = ("topk", "sort", "argsort", "kthvalue")
_SPELLINGS = {
    "imul": "mul",
    "rmul": "mul",
    "multiply": "mul",
    "truediv": "div",
    "itruediv": "div",
    "divide": "div",
    "true_divide": "div",
    "iadd": "add",
    "radd": "add",
    "isub": "sub",
    "subtract": "sub",
}


Moves = tuple[Callable[[Tensor], Tensor], ...]
"""Changes of a tensor's axes, which can be applied to other tensors."""
turned = attrgetter("mT")
"""The move that exchanges rows and columns."""


def replay(tensor: Tensor, moves: Moves) -> Tensor:
    """Return a tensor after moves that were recorded on another tensor of its shape."""
    for move in moves:
        # The model may have made a copy in between, so a view there may need a contiguous copy here.
        tensor = move(tensor.contiguous())
    return tensor


@dataclass(frozen=True)
class Scores:
    """A product that may become logits after terms are added; ``factor`` multiplies it in each row.

    ``masks`` are the entries that these terms hide, each with the number of moves before it.
    """

    left: Tensor
    right: Tensor
    factor: float | Tensor
    moves: Moves = ()
    masks: tuple[tuple[Tensor, int], ...] = ()

    def sides(self, keys_left: bool) -> list[Tensor]:
        """Return queries [*lead, n, d_k] and keys [*lead, m, d_k], which may be the left factor."""
        sides = [self.left, self.right.mT]
        lead = torch.broadcast_shapes(*(side.shape[:-2] for side in sides))
        sides = [side.expand(*lead, *side.shape[-2:]) for side in sides]
        return sides[::-1] if keys_left else sides

    def masked(self, hidden: Tensor | None) -> "Scores":
        """Return the scores after one more mask, if there is one."""
        if hidden is None:
            return self
        return replace(self, masks=(*self.masks, (hidden, len(self.moves))))


@dataclass(frozen=True)
class Weights:
    """The result of a softmax over the last axis; ``number`` counts the softmaxes."""

    number: int
    logits: Tensor
    scores: Scores | None
    moves: Moves = ()


@dataclass(eq=False)
class Outputs:
    """Outputs of heads; ``changed`` is the last operation after which they could not be followed."""

    changed: str | None = field(default=None, kw_only=True)


@dataclass(eq=False)
class Mixture(Outputs):
    """Weights times values, as the model computed them; ``number`` counts them in a forward pass.

    Attributes:
        values: The right factor.
        logits: Logits whose softmax the weights are.
        moves: Changes of the axes of the weights since the softmax, up to the left factor.
        result: The product [lead, n, d_v].
    """

    number: int
    values: Tensor
    logits: Tensor
    scores: Scores | None
    moves: Moves
    result: Tensor


@dataclass(frozen=True)
class Mixed:
    """Head outputs on their way to the output projection."""

    outputs: Outputs
    moves: Moves = ()


Track = Scores | Weights | Mixed


class Follower(TorchFunctionMode):
    """While it is active, passes each product of softmax weights and values to ``answer``.

    The result of ``answer`` replaces the product; with None the product stays as the model computed it. ``origin``
    gives the module of each softmax.

    Attributes:
        count: Number of products of weights and values so far.
        unmixed: Modules of the softmaxes that were not multiplied with values, by number; None outside of attention.
        ranking: Modules that chose the largest of something.
        normalised: Modules that took a softmax, or multiplied distributions, however these were computed.
    """

    def __init__(
        self,
        model: nn.Module,
        answer: Callable[[Mixture], Tensor | None],
        origin: Callable[[], Any] = lambda: None,
    ) -> None:
        super().__init__()
        by_weight = {
            id(layer.weight): layer for layer in model.modules() if isinstance(layer, nn.Linear)
        }
        self._steps: dict[str, Callable] = {
            "multi_head_attention_forward": partial(multi_head_attention, by_weight),
            "scaled_dot_product_attention": attention_in_steps,
            "einsum": einsum_in_steps,
        }
        self._answer, self._origin = answer, origin
        self._tracks = WeakIdKeyDictionary()
        self.unmixed: dict[int, Any] = {}
        self._softmaxes, self.count = count(), 0
        self.ranking: set[Any] = set()
        self.normalised: set[Any] = set()
        self._paused = False

    def mixed(self, tensor: Tensor) -> Mixed | None:
        """Return the head outputs that a tensor consists of; None for other tensors."""
        track = self._tracks.get(tensor)
        return track if isinstance(track, Mixed) else None

    def follow(self, tensor: Tensor) -> Outputs:
        """Follow outputs of heads that were computed elsewhere."""
        outputs = Outputs()
        self._tracks[tensor] = Mixed(outputs)
        return outputs

    def undisturbed(self, function: Callable[..., R]) -> Callable[..., R]:
        """Return a function during which nothing is followed."""

        def call(*args: Any) -> R:
            before, self._paused = self._paused, True
            try:
                return function(*args)
            finally:
                self._paused = before

        return call

    def __torch_function__(
        self,
        func: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run one torch function, and follow the tensors through it."""
        kwargs = kwargs or {}
        name = _name(func)
        if self._paused:
            return func(*args, **kwargs)
        if name in self._steps:
            with self:
                result = self._steps[name](*args, **kwargs)
            if result is not None:
                return result
        result = func(*args, **kwargs)
        if name.endswith("softmax"):
            self.normalised.add(self._origin())
        if name in _RANKED:
            self.ranking.add(self._origin())
        if name in _PRODUCTS:
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
            if min(leaf.ndim for leaf in tensors) >= 2:
                return self._multiplied(name, args, kwargs, tensors[-2:], result)
        self._note(name, func, args, kwargs, result)
        return result

    def _multiplied(
        self,
        name: str,
        args: tuple,
        kwargs: Mapping[str, Any],
        factors: list[Tensor],
        result: Tensor,
    ) -> Tensor:
        """Follow a product of two tensors, and return it, or what takes its place."""
        origin, tracks = self._origin(), self._tracks
        if origin is not None and any(map(holds_distributions, factors)):
            self.normalised.add(origin)
        for factor, other, moves in zip(factors, factors[::-1], ((), (turned,)), strict=True):
            track = tracks.get(factor)
            if isinstance(track, Weights):
                # (L R)ᵀ = Rᵀ Lᵀ has the weights on the left.
                mixture = Mixture(
                    self.count,
                    replay(other, moves),
                    track.logits,
                    track.scores,
                    (*track.moves, *moves),
                    replay(result, moves),
                )
                self.count += 1
                self.unmixed.pop(track.number, None)
                answer = self._answer(mixture)
                result = result if answer is None else replay(answer, moves)
                tracks[result] = Mixed(mixture, moves)
                return result
            if isinstance(track, Mixed):
                track.outputs.changed = "a product"
        left, right = factors
        scores = Scores(left, right, float(kwargs.get("alpha", 1.0)))
        if name == "baddbmm":
            scores = scores.masked(_hidden("add", args[:1], {}, result, result))
        tracks[result] = scores
        return result

    def _note(
        self, name: str, func: Callable, args: tuple, kwargs: Mapping[str, Any], result: Any
    ) -> None:
        tracks = self._tracks
        tensors = (leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))
        followed = next((leaf for leaf in tensors if leaf in tracks), None)
        track: Track | None = None if followed is None else tracks[followed]
        axis = kwargs.get("dim", *args[1:2])
        if name == "softmax" and axis in (-1, args[0].ndim - 1):
            scores = track if isinstance(track, Scores) else None
            number = next(self._softmaxes)
            self.unmixed[number] = self._origin()
            tracks[result] = Weights(number, args[0], scores)
            return
        if track is None or followed is None:
            return
        if name == "setitem":
            tracks.pop(args[0], None)
        if isinstance(track, Mixed) and name in ("setitem", "split"):
            track.outputs.changed = name
        if not isinstance(result, Tensor):
            return
        tracks.pop(result, None)
        if (after := _after(track, name, func, args, kwargs, followed, result)) is not None:
            tracks[result] = after
        elif isinstance(track, Mixed) and result.is_floating_point():
            track.outputs.changed = name


def holds_distributions(matrix: Any) -> bool:
    """Whether all rows of a tensor, all columns, or all matrices, are distributions over more than one entry."""
    if not isinstance(matrix, Tensor) or not matrix.is_floating_point():
        return False
    if matrix.ndim < 2 or not matrix.numel() or matrix.min() < 0:
        return False
    sums = [matrix.sum(axes) for axes in (-1, -2, (-1, -2))]
    return any(
        ((total - 1).abs() <= _NEAR_ONE).all() for total in sums if total.numel() < matrix.numel()
    )


def _name(func: Callable) -> str:
    name = getattr(func, "__name__", "")
    name = getattr(getattr(func, "__self__", None), "__name__", name) if name == "__get__" else name
    if name in _PRODUCTS:
        return name
    name = name.strip("_")
    return _SPELLINGS.get(name, name)


def _after(
    track: Track,
    name: str,
    func: Callable,
    args: tuple,
    kwargs: Mapping[str, Any],
    followed: Tensor,
    result: Tensor,
) -> Track | None:
    """Return what a followed tensor is after one more operation; None if it cannot be followed."""
    if name in _SAME:
        return track
    if name in _SHAPES:
        if followed is not args[0]:
            return None
        return replace(
            track, moves=(*track.moves, lambda tensor: func(tensor, *args[1:], **kwargs))
        )
    if isinstance(track, Mixed) or result.shape != followed.shape:
        return None
    if isinstance(track, Weights):
        return track if name in _MASKS else None
    if name not in _TERMS:
        return None
    if name not in ("mul", "div"):
        return track.masked(_hidden(name, args, kwargs, followed, result))
    # A number, or a number per row. A factor per entry counts as a mask, which is checked.
    others = [arg for arg in args if arg is not followed]
    if len(others) != 1 or (name == "div" and followed is not args[0]):
        return None
    other = others[0]
    if isinstance(other, Tensor) and other.numel() > 1:
        if other.shape[-1] > 1:
            return track
        if track.moves:
            return None
    return replace(track, factor=track.factor * other if name == "mul" else track.factor / other)


_HIDDEN = 9000.0
"""A term this far below zero is a mask; masks in use add -10,000 or less."""


def _hidden(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], logits: Tensor, result: Tensor
) -> Bool[Tensor, "..."] | None:
    """Return the entries that one operation on logits hides, in the shape of its result; None if it hides none."""
    first, *more = [arg for arg in (*args, *kwargs.values()) if arg is not logits] or [None]
    hidden = None
    if name == "masked_fill":
        hidden = first if more[0] <= -_HIDDEN else None
    elif name == "where":
        replaced = ~first if args[1] is logits else first
        hidden = replaced & (torch.as_tensor(more[0], device=logits.device) <= -_HIDDEN)
    elif name in ("add", "sub", "min", "minimum") and isinstance(first, Tensor):
        hidden = (-first if name == "sub" else first) <= -_HIDDEN
    return hidden.expand(result.shape) if hidden is not None and hidden.any() else None
