"""Proofs of both ends of a linear functional of a row, which need neither the model nor a solver to be checked."""

from dataclasses import dataclass
from math import isfinite

import torch
from jaxtyping import Float, Int
from torch import Tensor

SLACK = 1e-9
"""An end is proven if the bound comes this near to it, as a share of the largest coefficient times the row's sum."""

FEASIBLE = 1e-7
"""A row is an alternative if its sums and signs, and the change of what it mixes, are this near to what is allowed.

As a share of the row's sum, and of that times the longest row of F.
"""


@dataclass(frozen=True)
class Certificate:
    """Both ends of c·a' over all a' >= 0 with the sum of a and ‖(a' − a) F‖ <= δ, and the numbers that prove them.

    For any multipliers y, c·a' >= y·aF − δ ‖y‖ + Σ a · min_k (c − F y)_k: the first two terms are at most
    y·a'F, and the last is the least that (c − F y)·a' can be. All in float64.

    Attributes:
        row: a.
        factor: F, whose mixture by the row is what must stay.
        blocks: Number of the row of attention that each key belongs to; where there are several, each has its own sum.
        functional: c.
        tolerance: δ, in the units of F.
        multipliers: y of the lower end, and of the lower end of −c.
        ends: The stated ends, lower and upper.
        witnesses: The rows that come nearest to each end.
    """

    row: Float[Tensor, " key"]
    factor: Float[Tensor, "key r"]
    blocks: Int[Tensor, " key"]
    functional: Float[Tensor, " key"]
    tolerance: Float[Tensor, ""]
    multipliers: Float[Tensor, "two r"]
    ends: Float[Tensor, " two"]
    witnesses: Float[Tensor, "two key"]

    def proven(self) -> Float[Tensor, " two"]:
        """Return the ends that the multipliers prove, rounding taken off: the stated ones are not read.

        Signs and sums alone prove that a sum of weights without negative coefficients is at least 0.
        """
        y = self.multipliers
        length = self.tolerance * torch.linalg.vector_norm(y, dim=1)
        bounds = (
            y @ (self.row @ self.factor) - length + self._least(self._costs - y @ self.factor.mT)
        )
        # The bound is a difference of these numbers: of huge multipliers only rounding would be left.
        size = y.abs() @ (self.row @ self.factor.abs()) + length
        reduced = self._costs.abs() + y.abs() @ self.factor.abs().mT
        size = size + reduced.amax(1) * self.row.sum()
        steps = torch.finfo(torch.float64).eps * (sum(self.factor.shape) + 8)
        # Nothing cancels in this sum, and without negative costs it is 0 without rounding.
        bare = (1 + steps) * self._least(self._costs.clamp_max(0.0))
        return _SIGNS * torch.maximum(bounds - steps * size, bare) + 0.0

    @property
    def slack(self) -> float:
        """How far beyond a proven end the stated one may be: `SLACK` in the units of the functional."""
        return SLACK * float(self.functional.abs().max() * self.row.sum())

    @property
    def holds(self) -> bool:
        """Whether the stated ends are no narrower than what the multipliers prove.

        Numbers that are none, or beyond what float64 holds, prove nothing.
        """
        lo, hi = self.proven()
        if not torch.isfinite(lo + hi) or not isfinite(self.slack):
            return False
        return bool(lo >= self.ends[0] - self.slack) and bool(hi <= self.ends[1] + self.slack)

    @property
    def met(self) -> Float[Tensor, " two"] | None:
        """What the witnesses reach of both ends; None if one of them is no alternative of the row."""
        moved, size = self.witnesses - self.row, self.row.sum()
        numbers, index = torch.unique(self.blocks, return_inverse=True)
        sums = moved.new_zeros(2, len(numbers)).index_add(1, index, moved)
        longest = torch.linalg.vector_norm(self.factor, dim=1).amax()
        change = torch.linalg.vector_norm(moved @ self.factor, dim=1) - self.tolerance
        wrong = torch.stack([-self.witnesses.min(), sums.abs().max()]).max() > FEASIBLE * size
        far = change.max() > FEASIBLE * size * longest
        return None if wrong or far else self.witnesses @ self.functional

    @property
    def _costs(self) -> Float[Tensor, "two key"]:
        return _SIGNS[:, None] * self.functional

    def _least(self, costs: Float[Tensor, "two key"]) -> Float[Tensor, " two"]:
        """Return the least value of costs over all non-negative weights with the sums of the rows."""
        numbers, index = torch.unique(self.blocks, return_inverse=True)
        sums = self.row.new_zeros(len(numbers)).index_add(0, index, self.row)
        least = costs.new_full((2, len(numbers)), torch.inf)
        return least.scatter_reduce(1, index.expand_as(costs), costs, "amin") @ sums


_SIGNS = torch.tensor([1.0, -1.0], dtype=torch.float64)
