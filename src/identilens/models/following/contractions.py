"""Products of two tensors (matmul, bmm, baddbmm, einsum) in one form: left [lead, n, k] times right [lead, k, d]."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves

View = Callable[[Tensor], Tensor]

NAMES = frozenset(("matmul", "__matmul__", "bmm", "baddbmm", "einsum"))


@dataclass(frozen=True)
class Contraction:
    """One product: its operands in their original form, and their views as left and right factor.

    ``order`` permutes the axes of the result to [lead, n, d]; ``factor`` multiplies the product.
    """

    first: Tensor
    second: Tensor
    as_left: View
    as_right: View
    order: tuple[int, ...]
    factor: float = 1.0

    @property
    def left(self) -> Tensor:
        """The first operand as [lead, n, k]."""
        return self.as_left(self.first)

    @property
    def right(self) -> Tensor:
        """The second operand as [lead, k, d]."""
        return self.as_right(self.second)

    @property
    def turned(self) -> "Contraction":
        """The same product with its operands exchanged: (L R)ᵀ = Rᵀ Lᵀ."""
        return Contraction(
            self.second,
            self.first,
            lambda t: self.as_right(t).mT,
            lambda t: self.as_left(t).mT,
            (*self.order[:-2], self.order[-1], self.order[-2]),
            self.factor,
        )

    def seen(self, result: Tensor) -> Tensor:
        """Return a result of the product as [lead, n, d]."""
        return result.permute(self.order)

    def given(self, seen: Tensor) -> Tensor:
        """Return [lead, n, d] with the axes in the order that the model gave them."""
        return seen.permute(sorted(range(len(self.order)), key=self.order.__getitem__))


def contraction(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Contraction | None:
    """Return the product that the torch function ``name`` computed, or None if it has another form."""
    operands = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    if name == "einsum":
        return _einsum(args[0], *operands)
    if name == "baddbmm":
        operands = operands[1:]
    if (
        len(operands) != 2
        or not isinstance(result, Tensor)
        or min(one.ndim for one in operands) < 2
    ):
        return None
    factor = float(kwargs.get("alpha", 1.0))
    return Contraction(
        operands[0],
        operands[1],
        _same,
        _same,
        tuple(range(result.ndim)),
        factor,
    )


def _same(tensor: Tensor) -> Tensor:
    return tensor


def _einsum(equation: Any, *operands: Tensor) -> Contraction | None:
    if not isinstance(equation, str) or len(operands) != 2:
        return None
    if "." in equation or "->" not in equation:
        return None
    inputs, out = equation.replace(" ", "").split("->")
    a, b = inputs.split(",")
    summed = [letter for letter in a if letter in b and letter not in out]
    own_a, own_b = ([c for c in one if c not in other] for one, other in ((a, b), (b, a)))
    if (
        len(summed) != 1
        or not own_a
        or not own_b
        or any(letter not in out for letter in own_a + own_b)
    ):
        return None
    n, d = own_a[-1], own_b[-1]
    lead = [letter for letter in out if letter not in (n, d)]
    order = tuple(out.index(letter) for letter in (*lead, n, d))
    return Contraction(
        *operands,
        _arranged(a, [*lead, n, summed[0]]),
        _arranged(b, [*lead, summed[0], d]),
        order,
    )


def _arranged(letters: str, order: Sequence[str]) -> View:
    """Return a view with the axes in another order; an axis without its letter has size 1."""
    axes = [letters.index(letter) for letter in order if letter in letters]
    places = tuple(slice(None) if letter in letters else None for letter in order)
    return lambda tensor: tensor.permute(axes)[places]
