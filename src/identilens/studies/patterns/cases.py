"""Where a text has a pattern: sums of weights, and what they must exceed to be the largest."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.measures.attention.detectors import pattern_keys
from identilens.measures.attention.row_solver import ORDER_MARGIN, RowSolver
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.runs.conllu import TaggedText
from identilens.studies.outcomes import Tolerance, of_head
from identilens.studies.words import token_places, word_at

ARCS = "arcs"
"""The name that stands for all dependency relations of a treebank, in both directions."""

ARC = re.compile(r"(\S+) (to|from) head")
"""A pattern of one relation: from a word to its head, or from the head to the word."""

Sum = Mapping[int, Float[Tensor, " key"]]
"""A linear functional of several rows of a head: the coefficient of each key, by row."""


@dataclass(frozen=True)
class Case:
    """One place of a pattern.

    Attributes:
        value: The attention to what the pattern names.
        rivals: Attention to other words; None where the keys of a row are each other's rivals.
    """

    value: Sum
    rivals: Sequence[Sum] | None = None


def token_cases(pattern: str, names: Sequence[str], head: Head) -> list[Case]:
    """Return the rows that have a pattern of single tokens."""
    keys = {
        query: pattern_keys(pattern, names, query, head.seen(query)) for query in range(len(names))
    }
    return [Case({query: one.double()}) for query, one in keys.items() if one is not None]


def require_arcs(items: Sequence[Item]) -> None:
    """Check that texts are sentences of a treebank.

    Raises:
        InputError: If one is not.
    """
    for item in items:
        if not isinstance(item.text, TaggedText):
            raise InputError(
                f"{item.text!r:.60} has no dependency arcs. Take at most 10,000 sentences of a treebank (.conllu, "
                "limit=...), or leave out the patterns of arcs."
            )


def arc_cases(item: Item, tokenizer: Any, head: Head) -> dict[str, list[Case]]:
    """Return the arcs of a sentence by relation and direction, as Clark et al. 2019 (4.1) count attention of words.

    Attention to a word is summed over its tokens, attention from a word averaged over its own. The rivals of an arc
    are the other words in the place of its head.
    """
    text: Any = item.text
    spans = [(word.start, word.end, number) for number, word in enumerate(text.words)]
    pieces: dict[int, list[int]] = {}
    for place, (_, part, characters) in enumerate(token_places([text], tokenizer)):
        number = -1 if part is None else word_at(spans, characters, -1)
        pieces.setdefault(number, []).append(place)
    pieces.pop(-1, None)

    def attention(first: int, second: int) -> Sum:
        share = torch.zeros(len(head.keys), dtype=torch.float64)
        share[pieces[second]] = 1 / len(pieces[first])
        return dict.fromkeys(pieces[first], share)

    found: dict[str, list[Case]] = {}
    for number in pieces:
        above, relation = text.words[number].head, text.words[number].relation
        if above not in pieces:
            continue
        others = [one for one in pieces if one not in (number, above)]
        to = Case(attention(number, above), [attention(number, one) for one in others])
        back = Case(attention(above, number), [attention(one, number) for one in others])
        for direction, case in (("to", to), ("from", back)):
            seen = [head.seen(query) for query in case.value]
            if any(
                one is None or (share * one.cpu()).any()
                for one, share in zip(seen, case.value.values(), strict=True)
            ):
                found.setdefault(f"{relation} {direction} head", []).append(case)
    return found


@dataclass(frozen=True)
class HeadPrograms:
    """The programs over the rows of a head, up to a tolerance. Rows change independently of each other."""

    head: Head
    tolerance: Tolerance
    _solvers: dict[int, RowSolver] = field(default_factory=dict)

    def solver(self, query: int) -> RowSolver:
        """Return the programs of one row."""
        if query not in self._solvers:
            head = self.head
            kept = of_head(head.attention[query], head.projected, head.seen(query))
            self._solvers[query] = kept.solver(kept.allowed(self.tolerance))
        return self._solvers[query]

    def value(self, one: Sum) -> float:
        """Return a sum of the weights as they are."""
        return sum(float(share @ self.head.attention[query]) for query, share in one.items())

    def least(self, sums: Sequence[Sum]) -> Float[Tensor, " sum"]:
        """Return proven lower bounds of sums over all alternatives."""
        found = torch.zeros(len(sums), dtype=torch.float64)
        for query in sorted({query for one in sums for query in one}):
            having = [place for place, one in enumerate(sums) if query in one]
            solver = self.solver(query)
            shares = torch.stack([sums[place][query] for place in having])[:, solver.keys]
            costs, number = shares.unique(dim=0, return_inverse=True)
            found[having] += solver.least(costs)[number]
        return found

    def is_largest(self, case: Case) -> tuple[bool, bool]:
        """Return whether the pattern has the largest weight, and whether it has in every alternative.

        The largest key of the row, or the largest word in place of the one that an arc names.
        """
        if case.rivals is None:
            [(query, named)] = case.value.items()
            solver = self.solver(query)
            largest = bool(named[solver.keys[solver.inside.argmax()]])
            return largest, largest and solver.top(None) is not None
        apart = [_minus(case.value, rival) for rival in case.rivals]
        largest = all(self.value(one) > 0 for one in apart)
        return largest, largest and bool((self.least(apart) > ORDER_MARGIN).all())


def _minus(first: Sum, second: Sum) -> Sum:
    return {
        query: first.get(query, 0) - second.get(query, torch.zeros(()))
        for query in {**first, **second}
    }
