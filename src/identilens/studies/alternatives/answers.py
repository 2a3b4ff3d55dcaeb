"""Alternatives that keep the model's answer, or a layer's output: of one head's row, or of all heads' rows together."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import FLOAT32_EPS
from identilens.linalg.decompositions import svd
from identilens.linalg.simplex import joint_space
from identilens.models.heads import Head
from identilens.models.layout import find_site
from identilens.models.outcome import Answer
from identilens.models.substitution import Address, Rows
from identilens.studies.alternatives.settings import Aim
from identilens.studies.outcomes import KeptOutcome, of_layer, row_programs, seen_keys
from identilens.studies.settings import Tolerance

LARGEST = 0.9
"""Where no keys are named, an alternative leaves those that hold this share of the attention."""

PARTS = (1.0, 0.1, 0.01, 0.001)
"""Shares of the allowed change for which rows are proposed: far away, the first order says too little."""

STEPS = 4
"""Places at most at which the answer is linearised anew."""

_ROUNDS = 4
"""Programs of an aim that is not linear, each with the costs that the last one's optimum suggests."""

_HALVINGS = 10
_NONE, _LITTLE = 1e-6, 1e-3
"""A weight that counts as none, and one that is little: what the sparsest alternative is after."""


HeadRows = Float[Tensor, "head key"]
"""One row of each of several heads."""

HeadKeys = Bool[Tensor, "head key"]
"""Some of the keys of each."""


@dataclass(frozen=True)
class KeptAnswer:
    """Rows of heads with which the model gives nearly the same answer, confirmed by the model.

    Attributes:
        weights: The row of each head.
        columns: What is known of it, by column of the table.
    """

    weights: HeadRows
    columns: dict[str, Any]


def keep_answer(
    answer: Answer | None,
    heads: Sequence[Head],
    query: int,
    tolerance: Tolerance,
    named: Sequence[int],
    aim: Aim = "least",
) -> KeptAnswer:
    """Return rows of heads that differ as much as the aim asks for, while the answer stays.

    Without an answer the sum of the outputs of the heads stays, all of one layer: single heads may trade theirs.

    Least: little attention on the named keys, or on each head's largest. Farthest: much of all attention elsewhere.
    Sparsest: few keys with any attention. Programs of the first order propose rows; these are drawn towards those
    before until the answer that the model gives with them changes by no more than is allowed. From there the answer is
    linearised anew.
    """
    own = torch.stack([head.row(query) for head in heads])
    first, level = _near(answer, heads, query)
    near = row_programs([first], [0.0])
    allowed, left = first.allowed(tolerance), _left(own, named)

    def predicted(rows: HeadRows) -> float:
        return float(first.change(near.length(rows.flatten()[None, near.keys])))

    def change(rows: HeadRows) -> float:
        # A sum of outputs is linear.
        return answer.change(in_row(heads, query, rows)) if answer else predicted(rows)

    rows, measured = own, 0.0
    for _ in range(STEPS):
        start, (here, slope) = rows, (first, level)
        if rows is not own:
            here, slope = _near(answer, heads, query, rows)
        already, share, part = float(first.length(measured)), 0.0, 1.0
        for part in PARTS:
            programs, found = row_programs([here], [part * allowed]), start
            for _ in range(1 if aim == "least" else _ROUNDS):
                keys = programs.keys
                best = programs.proposal(
                    _cost(aim, found, own, left).flatten()[keys], slope[keys], already
                )
                found = torch.zeros_like(own).flatten().scatter(0, keys, best).view_as(own)
                found = found.where(found > _NONE, 0.0)
                found *= own.sum(1, keepdim=True) / found.sum(1, keepdim=True)
            way = partial(torch.lerp, start, found)
            share, given = _confirmed(lambda at, way=way: change(way(at)), allowed)
            if share and _left_over(aim, way(share), own, left) < _left_over(aim, rows, own, left):
                rows, measured = way(share), given
            if share == 1:
                break
        if rows is start or share == part == 1:
            break
    columns = {
        "query": query,
        "outcome": answer.outcome if answer else "layer",
        "aim": aim,
        "tolerance": tolerance.name,
        "allowed": allowed,
        "effect": first.effect,
        "predicted": predicted(rows),
        "measured": measured,
        "mass_before": (own * left).sum(1).tolist(),
        "mass_after": (rows * left).sum(1).tolist(),
        "keys_before": (own > _NONE).sum(1).tolist(),
        "keys_after": (rows > _NONE).sum(1).tolist(),
    }
    return KeptAnswer(rows, columns)


def _cost(aim: Aim, rows: HeadRows, own: HeadRows, left: HeadKeys) -> HeadRows:
    """Return what each weight costs near some rows, for an aim."""
    if aim == "sparsest":
        return _LITTLE / (rows + _LITTLE)
    if aim == "farthest":
        return own.sqrt().double() if rows is own else (rows < own).double()
    return left.double()


def _left_over(aim: Aim, rows: HeadRows, own: HeadRows, left: HeadKeys) -> float:
    """Return how much rows have of what an aim is to make small."""
    if aim == "sparsest":
        return float((rows > _NONE).sum())
    return float((torch.minimum(rows, own) if aim == "farthest" else rows[left]).sum())


def in_row(heads: Sequence[Head], query: int, rows: HeadRows | None) -> dict[Address, Any]:
    """Return the weights of one row of heads as a model takes them, none for their own."""
    if rows is None:
        return {}
    return {
        one.address: Rows([query], row[None].double()) for one, row in zip(heads, rows, strict=True)
    }


def _left(own: HeadRows, named: Sequence[int]) -> HeadKeys:
    """Return which keys are to be left: the named ones, or of each head those that hold most of its attention."""
    if named:
        return torch.isin(torch.arange(own.shape[1]), torch.tensor(named)).expand_as(own)
    order = own.argsort(1, descending=True)
    before = own.gather(1, order).cumsum(1) - own.gather(1, order)
    return torch.zeros_like(own, dtype=torch.bool).scatter(1, order, before < LARGEST)


def _confirmed(change: Callable[[float], float], allowed: float) -> tuple[float, float]:
    """Return the largest step found, up to 1, whose change is allowed, and that change."""
    if (given := change(1.0)) <= allowed:
        return 1.0, given
    low, high, kept = 0.0, 1.0, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        given = change(middle)
        if given <= allowed:
            low, kept = middle, given
        else:
            high = middle
    return low, kept


def _near(
    answer: Answer | None, heads: Sequence[Head], query: int, rows: HeadRows | None = None
) -> tuple[KeptOutcome, Float[Tensor, " weight"]]:
    """Return the model's answer as what must stay when one row of all heads changes together, to first order.

    Where the heads have other ``rows``, or their own; with half of how fast the square of the change rises with each
    weight, where it has changed already. Without an answer the sum of the outputs of the heads.

    Raises:
        InputError: If heads do not see the same keys at this row.
    """
    seen = [seen_keys(one, query) for one in heads]
    if not all(torch.equal(one, seen[0]) for one in seen):
        raise InputError(
            "all heads of a row together need heads that see the same keys; these differ (sliding windows, "
            "or several kinds of attention). Choose layers= that agree (--layers)."
        )
    own = torch.stack([one.row(query) for one in heads])
    if answer is None:
        kept = of_layer(heads, 0, query, torch.finfo(torch.float64).eps)
        return replace(kept, of_head=kept.of_head | True), torch.zeros_like(kept.row)
    sites = answer.lens.sites(answer.item)
    root, slopes = answer.linearised(
        [(find_site(sites, *one.address), one.head) for one in heads],
        query,
        in_row(heads, query, rows),
    )
    # Directions in which the answer does not depend on any of the heads are left out.
    left, sizes, _ = svd(root.flatten(0, 1))
    needed = sizes > FLOAT32_EPS * sizes[:1].clamp_min(1e-300)
    blocks = (left * sizes)[:, needed].unflatten(0, root.shape[:2])
    whole = torch.stack(
        [one.values.double() @ block for one, block in zip(heads, blocks, strict=True)]
    )
    space = joint_space(whole, seen[0], FLOAT32_EPS * max(whole.shape[1:]))
    row = (own if rows is None else rows).flatten()
    every, effect = torch.ones_like(row, dtype=torch.bool), None
    if rows is None:
        effect = answer.change(in_row(heads, query, torch.zeros_like(own)))
    kept = KeptOutcome(heads[0].projected, row, space, every, 1.0, effect, answer)
    rising = [head.values.double() @ one for head, one in zip(heads, slopes, strict=True)]
    return kept, torch.cat(rising)
