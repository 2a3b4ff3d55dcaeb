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
    raw = torch.stack([head.row(query) for head in heads])
    first, level = _near(answer, heads, query)
    near = row_programs([first], [0.0])
    allowed, left = first.allowed(tolerance), _left(raw, named)

    def predicted(rows: HeadRows) -> float:
        return float(first.change(near.length(rows.flatten()[None, near.keys])))

    def change(rows: HeadRows) -> float:
        # A sum of outputs is linear.
        return answer.change(query, in_row(heads, query, rows)) if answer else predicted(rows)

    rows, measured = raw, 0.0
    for _ in range(STEPS):
        start, (here, slope) = rows, (first, level)
        if rows is not raw:
            here, slope = _near(answer, heads, query, rows)
        already, share, part = float(first.length(measured)), 0.0, 1.0
        for part in PARTS:
            programs, target = row_programs([here], [part * allowed]), start
            for _ in range(1 if aim == "least" else _ROUNDS):
                keys = programs.keys
                best = programs.proposal(
                    _cost(aim, target, raw, left).flatten()[keys], slope[keys], already
                )
                target = torch.zeros_like(raw).flatten().scatter(0, keys, best).view_as(raw)
                target = target.where(target > _NONE, 0.0)
                target *= raw.sum(1, keepdim=True) / target.sum(1, keepdim=True)
            way = partial(torch.lerp, start, target)
            share, moved = _confirmed(lambda step, way=way: change(way(step)), allowed)
            if share and _left_over(aim, way(share), raw, left) < _left_over(aim, rows, raw, left):
                rows, measured = way(share), moved
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
        "mass_before": (raw * left).sum(1).tolist(),
        "mass_after": (rows * left).sum(1).tolist(),
        "keys_before": (raw > _NONE).sum(1).tolist(),
        "keys_after": (rows > _NONE).sum(1).tolist(),
    }
    return KeptAnswer(rows, columns)


def _cost(aim: Aim, rows: HeadRows, raw: HeadRows, left: HeadKeys) -> HeadRows:
    """Return what each weight costs near some rows, for an aim."""
    if aim == "sparsest":
        return _LITTLE / (rows + _LITTLE)
    if aim == "farthest":
        return raw.sqrt().double() if rows is raw else (rows < raw).double()
    return left.double()


def _left_over(aim: Aim, rows: HeadRows, raw: HeadRows, left: HeadKeys) -> float:
    """Return how much rows have of what an aim is to make small."""
    if aim == "sparsest":
        return float((rows > _NONE).sum())
    return float((torch.minimum(rows, raw) if aim == "farthest" else rows[left]).sum())


def in_row(heads: Sequence[Head], query: int, rows: HeadRows | None) -> dict[Address, Any]:
    """Return the weights of one row of heads as a model takes them, none for their own."""
    if rows is None:
        return {}
    return {
        head.address: Rows([query], row[None].double())
        for head, row in zip(heads, rows, strict=True)
    }


def _left(raw: HeadRows, named: Sequence[int]) -> HeadKeys:
    """Return which keys are to be left: the named ones, or of each head those that hold most of its attention."""
    if named:
        return torch.isin(torch.arange(raw.shape[1]), torch.tensor(named)).expand_as(raw)
    order = raw.argsort(1, descending=True)
    before = raw.gather(1, order).cumsum(1) - raw.gather(1, order)
    return torch.zeros_like(raw, dtype=torch.bool).scatter(1, order, before < LARGEST)


def _confirmed(change: Callable[[float], float], allowed: float) -> tuple[float, float]:
    """Return the largest step found, up to 1, whose change is allowed, and that change."""
    if (moved := change(1.0)) <= allowed:
        return 1.0, moved
    low, high, kept = 0.0, 1.0, 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        moved = change(middle)
        if moved <= allowed:
            low, kept = middle, moved
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
    visible = [seen_keys(head, query) for head in heads]
    if not all(torch.equal(mask, visible[0]) for mask in visible):
        raise InputError(
            "all heads of a row together need heads that see the same keys; these differ (sliding windows, "
            "or several kinds of attention). Choose layers= that agree (--layers)."
        )
    raw = torch.stack([head.row(query) for head in heads])
    if answer is None:
        kept = of_layer(heads, 0, query, torch.finfo(torch.float64).eps)
        return replace(kept, of_head=kept.of_head | True), torch.zeros_like(kept.row)
    sites = answer.lens.sites(answer.item)
    root, slopes = answer.linearised(
        [(find_site(sites, *head.address), head.head) for head in heads],
        query,
        in_row(heads, query, rows),
    )
    # Directions in which the answer does not depend on any of the heads are left out.
    left, sizes, _ = svd(root.flatten(0, 1))
    needed = sizes > FLOAT32_EPS * sizes[:1].clamp_min(1e-300)
    blocks = (left * sizes)[:, needed].unflatten(0, root.shape[:2])
    values = torch.stack(
        [head.values.double() @ block for head, block in zip(heads, blocks, strict=True)]
    )
    space = joint_space(values, visible[0], FLOAT32_EPS * max(values.shape[1:]))
    row = (raw if rows is None else rows).flatten()
    every, effect = torch.ones_like(row, dtype=torch.bool), None
    if rows is None:
        effect = answer.change(query, in_row(heads, query, torch.zeros_like(raw)))
    kept = KeptOutcome(heads[0].projected, row, space, every, 1.0, effect, answer)
    rising = [head.values.double() @ slope for head, slope in zip(heads, slopes, strict=True)]
    return kept, torch.cat(rising)
