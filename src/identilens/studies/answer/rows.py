"""The rows of an answer's tokens: attention by segment, and its ends over all alternatives for drawn rows."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.attention.row_solver import RowSolver
from identilens.models.chats import REST, SINK, SO_FAR, TEMPLATE
from identilens.models.heads import CapturedLayer, Head
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.runs.tables import Row
from identilens.studies.outcomes import Tolerance, of_head

_STREAM = 0xA75
"""Tells the draw of rows apart from other uses of a run's seed."""

_NAMED = 3
"""Segments that are named at most where each is compared with every other one but the sink."""

Heads = Mapping[int, Sequence[int]]
"""Heads by the number of their attention in call order."""


class AnswerRows:
    """Handler of a pass over prompt and answer, which keeps the attention of the answer's tokens by segment.

    Row t − 1, whose output predicts token t, is the row of token t. Only these rows of weights are computed, beside the
    model's own attention: m rows × n keys a head.

    Args:
        sites: The model's attention layers in call order.
        heads: Heads that are looked at.
        prompt: Number of tokens of the prompt.
        segments: One row for each segment, 1 on its keys.
        names: Names of the segments, that of a sink last.
        drawn: Rows whose ends are computed, by attention in call order: head and token.
        tolerances: How much a head's output may change and count as the same.
        keeps: Whether whole rows are kept, too.
        tell: Called with the number of each attention when it is done.

    Attributes:
        masses: By attention in call order, attention by head, token and segment; a last segment is what a sink takes.
        weights: Whole rows by layer and head, if they are kept.
        intervals: Columns of each proven interval, of a segment or of what it gets beyond an ``other`` one; segments
            that a row cannot see get nothing.
    """

    def __init__(
        self,
        sites: Sequence[Site],
        heads: Heads,
        prompt: int,
        segments: Float[Tensor, "segment key"],
        names: Sequence[str],
        drawn: Mapping[int, Sequence[tuple[int, int]]],
        tolerances: Sequence[Tolerance],
        keeps: bool,
        tell: Callable[[int], None],
    ) -> None:
        self._sites, self._heads = sites, heads
        self._rows = range(prompt - 1, segments.shape[1] - 1)
        # A sink is one more key, and a segment of its own.
        self._segments = torch.block_diag(segments, torch.ones(1, 1).double())
        every = dict(zip(names, self._segments, strict=True))
        named = [name for name in names if name not in (TEMPLATE, REST, SO_FAR, SINK)]
        self._functionals = {(name, None): keys for name, keys in every.items()} | {
            (name, other): every[name] - every[other]
            for name in named
            for other in names[:-1]
            if other != name and len(named) <= _NAMED
        }
        self._drawn, self._tolerances = drawn, tolerances
        self._keeps, self._tell = keeps, tell
        self.masses: dict[int, Float[Tensor, "head token segment"]] = {}
        self.weights: dict[tuple[int, int], Float[Tensor, "token key"]] = {}
        self.intervals: list[Row] = []

    def __call__(self, call: AttentionCall) -> Tensor:
        """Return the model's own output of a call."""
        if call.index in self._heads:
            rows = call.rows(self._rows)
            layer = CapturedLayer.of(rows, self._sites[call.index], *rows.attend())
            masses = []
            for number in self._heads[call.index]:
                head = layer.head(number)
                weights = head.attention
                rest = (1 - weights.sum(-1, keepdim=True)).clamp_min(0.0) * head.sink
                masses.append(torch.cat([weights, rest], -1) @ self._segments.mT)
                if self._keeps:
                    self.weights[head.layer, number] = weights.float()
                tokens = [token for one, token in self._drawn[call.index] if one == number]
                if tokens:
                    self._bound(head, tokens)
            self.masses[call.index] = torch.stack(masses)
        self._tell(call.index)
        return call.run()

    def _bound(self, head: Head, tokens: Sequence[int]) -> None:
        """Add the ends of the attention to each segment and of its differences, for some rows of a head."""
        functionals = torch.stack([*self._functionals.values()])
        for token in tokens:
            weights, T, visible = head.distributions(head.at(token))
            kept = of_head(weights[token], T, None if visible is None else visible[token])
            for tolerance in self._tolerances:
                solver = kept.solver(kept.allowed(tolerance))
                ends = _ends(solver, functionals[:, solver.keys])
                self.intervals += [
                    {
                        "token": token,
                        "layer": head.layer,
                        "head": head.head,
                        "tolerance": tolerance.name,
                        "segment": segment,
                        "other": other,
                        "mass": mass,
                        "lo": lo,
                        "hi": hi,
                    }
                    for (segment, other), mass, lo, hi in zip(self._functionals, *ends, strict=True)
                ]


def _ends(solver: RowSolver, costs: Float[Tensor, "functional seen"]) -> list[list[float]]:
    """Return functionals of a row, and their least and greatest values over all alternatives."""
    masses = costs @ solver.inside
    ends = masses.repeat(3, 1)
    # All alternatives have the same sum: what is the same on all keys does not change.
    open_ = (costs != costs[:, :1]).any(1)
    least, minus_greatest = solver.least(torch.cat([costs[open_], -costs[open_]])).chunk(2)
    # The row itself is an alternative.
    ends[1, open_] = torch.minimum(least, masses[open_])
    ends[2, open_] = torch.maximum(-minus_greatest, masses[open_])
    return ends.tolist()


def drawn_rows(
    heads: Heads, tokens: int, count: int, seed: int, text: int
) -> dict[int, list[tuple[int, int]]]:
    """Return rows of attention, head and token by attention in call order: so many of each token, drawn from all heads.

    The heads stand in a random order in which layers take turns. The tokens take them one after another, round and
    round: each row is drawn with the same probability, and layers with as many heads equally often (systematic
    sampling). They depend on nothing but the seed and the place, so that a resumed run draws the same.
    """
    generator = np.random.default_rng([_STREAM, seed, text])
    own = {number: generator.permutation(heads[number]).tolist() for number in heads}
    order = [
        (number, own[number][turn])
        for turn in range(max(map(len, own.values())))
        for number in generator.permutation(list(heads)).tolist()
        if turn < len(own[number])
    ]
    count = min(count, len(order))
    # Layers with fewer heads leave the later turns, so that these begin at a random place.
    start = int(generator.integers(len(order))) if len({*map(len, own.values())}) > 1 else 0
    drawn: dict[int, list[tuple[int, int]]] = {number: [] for number in heads}
    for at in range(tokens * count):
        number, head = order[(start + at) % len(order)]
        drawn[number].append((head, at // count))
    return drawn
