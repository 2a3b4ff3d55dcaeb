"""Least values of the weights of many rows that may use the same keys: exact, or between bounds that cost less."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from identilens.linalg import SimplexSpace
from identilens.linalg.interior import SharedPrograms

_NUMBERS = 2**24
"""Numbers held at a time when moves are tried."""
_OPEN = 1e-6
"""Bounds whose distances add up to less are not refined."""
_OF_A_KEY, _SPREAD = 16, 4
"""Programs of one key in a round at most, and how far apart their rows are in the order of widths."""

Lower = Float[Tensor, "row seen"]


class MapSolver:
    """Programs over the alternatives of rows that share a space, on its visible keys only.

    What is feasible for the dual of a program depends on its key and not on its row. So the multipliers that prove the
    least weight of a key in one row prove a bound in every row, and the move to an alternative of one row leads to
    alternatives of the others.
    """

    def __init__(self, space: SimplexSpace):
        self.visible = space.visible
        self._kept = space.kept[space.visible].cpu()
        self._movable = space.movable[space.visible].cpu()
        self._programs = SharedPrograms(self._kept)

    def lower(self, rows: Float[Tensor, "row key"]) -> Lower:
        """Return the least value of each weight over all alternatives of its row.

        Every round runs one program a row. A key is open as long as no alternative met so far has its weight at zero.
        While that settles keys, a row's program looks for an alternative with little on all open keys, by costs drawn
        at random so that it is a vertex; then for the least weight of a single one.
        """
        inside, generator = rows[:, self.visible].cpu(), torch.Generator().manual_seed(0)
        lo = torch.where(self._movable, 0.0, inside)
        open_ = self._movable & (inside > 0)
        together = torch.ones(len(rows), dtype=torch.bool)
        while (alive := torch.nonzero(open_.any(1)).flatten()).numel():
            key = torch.where(open_, inside, -1.0)[alive].argmax(1)
            single = ~together[alive] | (open_[alive].sum(1) == 1)
            drawn = (
                torch.rand(len(alive), inside.shape[1], generator=generator, dtype=inside.dtype)
                * open_[alive]
            )
            costs = torch.where(
                single[:, None], one_hot(key, inside.shape[1]).to(inside.dtype), drawn
            )
            optima = self._programs.minimise(costs, inside[alive])
            found = alive[single], key[single]
            lo[found] = torch.minimum(optima.bounds[single].clamp_min(0.0), inside[found])
            left = open_[alive] & (optima.points > 0)
            together[alive] = ~single & (left.sum(1) < open_[alive].sum(1))
            open_[alive] = left
            open_[found] = False
        return lo

    def bracket(self, rows: Float[Tensor, "row key"], rounds: int) -> tuple[Lower, Lower]:
        """Return proven bounds from below and from above on what `lower` returns.

        Every round runs as many programs as there are keys, most for those keys whose bounds are far apart in many
        rows. Their multipliers and alternatives tighten the bounds of all rows.
        """
        inside = rows[:, self.visible].cpu()
        lo, hi = torch.where(self._movable, 0.0, inside), inside.clone()
        for _ in range(rounds):
            row, key = _chosen(hi - lo, inside.shape[1])
            if not key.numel():
                break
            costs = one_hot(key, inside.shape[1]).to(inside.dtype)
            moves, multipliers = self._programs.near(costs, inside[row])
            least = (costs - multipliers @ self._kept.mT).amin(1)
            proven = inside @ self._kept @ multipliers.mT + inside.sum(1, keepdim=True) * least
            lo = lo.scatter_reduce(1, key.expand(len(inside), -1), proven, "amax")
            hi = torch.minimum(hi, _reached(inside, moves))
        return torch.minimum(lo, hi), hi


def _chosen(width: Lower, count: int) -> tuple[Int[Tensor, " program"], Int[Tensor, " program"]]:
    """Return rows and keys of about so many programs: of a key as many as its share of all widths.

    Several of a key are spread over its widest rows, of which neighbours would prove much the same.
    """
    share = width.sum(0)
    programs = (
        torch.ceil(count * share / share.sum().clamp_min(_OPEN) - 0.5).long().clamp_max(_OF_A_KEY)
    )
    order = width.argsort(0, descending=True)
    place = torch.arange(_OF_A_KEY)[:, None] * torch.where(programs > 1, _SPREAD, 1)
    taken = (torch.arange(_OF_A_KEY)[:, None] < programs) & (place < len(width))
    key = torch.nonzero(taken)[:, 1]
    return order[place[taken.expand_as(place)], key], key


def _reached(inside: Lower, moves: Float[Tensor, "move seen"]) -> Lower:
    """Return the least weight that some of the moves, made as far as it can be from each row, leaves each key."""
    least = inside.clone()
    for part in moves.split(max(1, _NUMBERS // inside.numel())):
        falls = torch.where(part < 0, -part, torch.finfo(part.dtype).tiny)
        length = (inside[:, None] / falls).amin(-1, keepdim=True).clamp_max(1e6)
        least = torch.minimum(least, (inside[:, None] + length * part).clamp_min(0.0).amin(1))
    return least
