"""Recording a derivative while it is computed: the operations on the tangent, with everything else as constants."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from identilens.models.derivative.batched import Mapped, Operation, Product, Reshape, Rowwise, Sum
from identilens.models.derivative.rowwise import RowMap, as_factor

aten = torch.ops.aten

_SAME = {aten.clone.default, aten.detach.default, aten.alias.default, aten._to_copy.default, aten.expand.default}
_RESHAPES = {aten.view.default, aten._unsafe_view.default, aten.reshape.default}


class NotTraceableError(Exception):
    """The derivative has an operation that cannot be recorded."""


@dataclass(frozen=True, eq=False)
class Step:
    """One recorded operation and the numbers of its input and output tensors."""

    run: Operation
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(eq=False)
class _Value:
    """A tensor in terms of recorded tensors; all its copies share it, so that it is computed only once."""

    rows: RowMap


class Tracer(TorchDispatchMode):
    """Records the operations on a tangent inside the context; other operations simply run.

    Tensor 0 of the recorded ``steps`` is the tangent; ``coarsest`` is the largest machine epsilon of its dtypes.
    """

    def __init__(self, tangent: Tensor) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.coarsest = torch.finfo(tangent.dtype).eps
        self._count = 1
        # Entries of deleted tensors are removed, and with them the constants of maps that were never computed.
        self._values = WeakTensorKeyDictionary()
        self._values[tangent] = _Value(RowMap(0, tangent.shape))

    def number(self, tensor: Tensor) -> int | None:
        """Return the number of a recorded tensor, or None if it does not depend on the tangent."""
        return self._made(tensor) if tensor in self._values else None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not any(isinstance(leaf, Tensor) and leaf in self._values for leaf in tree_leaves((args, kwargs))):
            return func(*args, **kwargs)
        if func._schema.is_mutable:
            return self._in_place(func, args, kwargs)
        result = func(*args, **kwargs)
        self._record(_Call(func, args, kwargs, self._values), result, result)
        return result

    def _in_place(self, func: Any, args: tuple, kwargs: dict) -> Any:
        packet = getattr(aten, func._schema.name.removeprefix("aten::").removesuffix("_"), None)
        plain = getattr(packet, func._overloadname, None)
        if plain is None or plain._schema.is_mutable:
            raise NotTraceableError(f"{func} writes into a tensor")
        before = args if args[0] in self._values else (args[0].clone(), *args[1:])
        self._record(_Call(plain, before, kwargs, self._values), plain(*before, **kwargs), args[0])
        return func(*args, **kwargs)

    def _record(self, call: "_Call", result: Any, target: Any) -> None:
        outputs, targets = ([leaf for leaf in tree_leaves(of) if isinstance(leaf, Tensor)] for of in (result, target))
        if not outputs or any(not out.is_floating_point() or out.device != call.first.device for out in outputs):
            # Results of comparisons, and shapes computed on the meta device, do not depend on the tangent.
            return
        self.coarsest = max([self.coarsest, *(torch.finfo(out.dtype).eps for out in outputs)])
        if len(outputs) == 1:
            value = self._composed(call, outputs[0])
            if value is not None:
                self._values[targets[0]] = value
                return
        inputs = tuple(self._made(tensor) for tensor in call.tracked)
        numbers = self._step(call.operation(outputs), inputs, len(outputs))
        for number, tensor in zip(numbers, targets, strict=True):
            self._values[tensor] = _Value(RowMap(number, tensor.shape))

    def _composed(self, call: "_Call", output: Tensor) -> _Value | None:
        func, args, first = call.func, call.args, call.first
        value: _Value = self._values[first]
        if any(tensor.dtype != output.dtype for tensor in call.tracked):
            return None
        if func == aten.copy.default and args[1] in self._values and args[1].shape == output.shape:
            return self._values[args[1]]
        if func in _SAME and output.shape == first.shape:
            return value
        rows: RowMap | None = None
        if func in (aten.sum.dim_IntList, aten.mean.dim) and call.keeps_last_axis():
            rows = value.rows.row_sum()
            if rows is not None and func == aten.mean.dim:
                rows = rows.scaled(1 / first.shape[-1], output.shape)
        elif func == aten._softmax_backward_data.default and call.places == [0] and args[2] in (-1, first.ndim - 1):
            scaled = value.rows.scaled(args[1], output.shape)
            total = scaled and scaled.row_sum()
            rest = total and total.scaled(-args[1], output.shape)
            rows = scaled and rest and scaled.plus(rest)
        elif torch.Tag.pointwise in func.tags:
            return self._pointwise(call, output)
        return rows and _Value(rows)

    def _pointwise(self, call: "_Call", output: Tensor) -> _Value | None:
        """Return a linear elementwise operation as multiplication with its result for ones."""
        if bool(call.at(None).any()):
            raise NotTraceableError(f"{call.func} is not linear in the tangent")
        values: list[_Value] = []
        for place, tensor in zip(call.places, call.tracked, strict=True):
            value, factor = self._values[tensor], as_factor(call.at(place))
            if value.rows.result_shape != output.shape or not isinstance(factor, float) or factor != 1.0:
                scaled = value.rows.scaled(factor, output.shape)
                if scaled is None:
                    return None
                value = _Value(scaled)
            values.append(value)
        total = values[0]
        for value in values[1:]:
            rows = total.rows.plus(value.rows)
            if rows is None:
                pair = self._carried_out(total, output), self._carried_out(value, output)
                rows = RowMap(self._step(Sum(), pair)[0], output.shape)
            total = _Value(rows)
        return total

    def _made(self, tensor: Tensor) -> int:
        return self._carried_out(self._values[tensor], tensor)

    def _carried_out(self, value: _Value, like: Tensor) -> int:
        if not value.rows.is_identity:
            number = self._step(Rowwise.of(value.rows, like), (value.rows.base,))[0]
            value.rows = RowMap(number, value.rows.result_shape)
        return value.rows.base

    def _step(self, run: Operation, inputs: tuple[int, ...], count: int = 1) -> tuple[int, ...]:
        numbers = tuple(range(self._count, self._count + count))
        self._count += count
        self.steps.append(Step(run, inputs, numbers))
        return numbers


class _Call:
    """One call of an operation; ``tracked``: its arguments that depend on the tangent, ``places``: their positions."""

    def __init__(self, func: Any, args: tuple, kwargs: dict, values: WeakTensorKeyDictionary) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self._leaves, self._spec = tree_flatten((args, kwargs))
        self.places = [place for place, leaf in enumerate(self._leaves) if isinstance(leaf, Tensor) and leaf in values]
        self.tracked: list[Tensor] = [self._leaves[place] for place in self.places]
        self.first = self.tracked[0]

    def at(self, one: int | None) -> Tensor:
        # The result of the operation for ones at one place and zeros at the others.
        pairs = zip(self.places, self.tracked, strict=True)
        probes = [torch.full_like(tensor, float(place == one)) for place, tensor in pairs]
        return _filled(self.func, self._leaves, self._spec, self.places)(*probes)

    def keeps_last_axis(self) -> bool:
        bound = dict(zip(("self", "dim", "keepdim"), self.args, strict=False)) | self.kwargs
        axes = bound.get("dim")
        return bool(bound.get("keepdim")) and axes is not None and list(axes) in ([-1], [self.first.ndim - 1])

    def operation(self, outputs: Sequence[Tensor]) -> Operation:
        if self.func in (aten.mm.default, aten.bmm.default) and len(self.places) == 1:
            left = self.places == [1]
            return Product(self.args[0] if left else self.args[1], left, outputs[0].shape)
        if self.func in _RESHAPES:
            return Reshape(self.first.shape, outputs[0].shape)
        # The tensors used for recording are released; only the constants are stored.
        leaves = [None if place in self.places else leaf for place, leaf in enumerate(self._leaves)]
        return Mapped(_filled(self.func, leaves, self._spec, self.places))


def _filled(func: Any, leaves: list, spec: Any, places: list[int]) -> Any:
    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        args, kwargs = tree_unflatten(filled, spec)
        result = func(*args, **kwargs)
        return tuple(result) if isinstance(result, list) else result

    return call
