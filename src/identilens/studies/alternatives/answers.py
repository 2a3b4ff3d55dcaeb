"""Alternatives that keep the model's answer: of one head's row, or of the rows of all heads together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import FLOAT32_EPS
from identilens.linalg.simplex import joint_space
from identilens.measures.attention.simplex import total_variation
from identilens.models.heads import Head
from identilens.models.outcome import Answer
from identilens.models.substitution import Address, Rows
from identilens.studies.outcomes import KeptOutcome

LARGEST = 0.9
"""Where no keys are named, an alternative leaves those that hold this share of the attention."""

PARTS = (1.0, 0.3, 0.1, 0.03, 0.01)
"""Shares of the allowed change for which all heads' programs are solved: together, the first order says too little."""

_HALVINGS = 10


@dataclass(frozen=True)
class KeptAnswer:
    """Rows of heads with which the model gives nearly the same answer, confirmed by the model.

    Attributes:
        weights: The row of each head.
        columns: What is known of it, by column of the table.
    """

    weights: Float[Tensor, "head key"]
    columns: dict[str, Any]


def keep_answer(
    answer: Answer,
    heads: Sequence[Head],
    query: int,
    kept: KeptOutcome,
    allowed: float,
    named: Sequence[int],
) -> KeptAnswer:
    """Return the rows that put least on the named keys, or on each head's largest, while the answer stays.

    The program of the first order proposes rows; they are drawn towards the model's own until its answer, computed
    with them, changes by no more than is allowed.
    """
    own = torch.stack([head.attention[query] for head in heads])
    leave = torch.zeros_like(own, dtype=torch.bool)
    if named:
        leave[:, list(named)] = True
    else:
        order = own.argsort(1, descending=True)
        before = own.gather(1, order).cumsum(1) - own.gather(1, order)
        leave.scatter_(1, order, before < LARGEST)

    def change(rows: Float[Tensor, "head key"]) -> float:
        put: dict[Address, Any] = {
            (one.layer, one.head, one.kind): Rows([query], row[None])
            for one, row in zip(heads, rows, strict=True)
        }
        return answer.change(put)

    best, least, predicted, measured = own, float(own[leave].sum()), 0.0, 0.0
    for part in PARTS if len(heads) > 1 else PARTS[:1]:
        solver = kept.solver(part * allowed)
        found = solver.optimum(leave.flatten()[solver.keys].double())
        rows = torch.zeros_like(own).flatten().scatter(0, solver.keys, found).view_as(own)
        share, given = _confirmed(
            lambda step, rows=rows: change(own + step * (rows - own)), allowed
        )
        rows = own + share * (rows - own)
        if float(rows[leave].sum()) < least:
            best, least, measured = rows, float(rows[leave].sum()), given
            predicted = float(kept.change(share * solver.length(found)))
    columns = {
        "query": query,
        "outcome": answer.outcome,
        "allowed": allowed,
        "effect": kept.effect,
        "predicted": predicted,
        "measured": measured,
        "mass_before": [float(row[mask].sum()) for row, mask in zip(own, leave, strict=True)],
        "mass_after": [float(row[mask].sum()) for row, mask in zip(best, leave, strict=True)],
        "distance": total_variation(own, best).tolist(),
    }
    return KeptAnswer(best, columns)


def _confirmed(change: Any, allowed: float) -> tuple[float, float]:
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


def of_answers(
    answer: Answer, heads: Sequence[Head], root: Float[Tensor, "head d_v r"], query: int
) -> KeptOutcome:
    """Return the model's answer as what must stay when one row of all heads changes together, to first order.

    Raises:
        InputError: If heads do not see the same keys at this row.
    """
    masks = [one.visible for one in heads]
    seen = [
        torch.ones(len(one.keys), dtype=torch.bool) if mask is None else mask[query]
        for one, mask in zip(heads, masks, strict=True)
    ]
    if any(len(one) != len(seen[0]) or bool((one != seen[0]).any()) for one in seen):
        raise InputError(
            "all heads of a row together need heads that see the same keys; these differ (sliding windows, "
            "or several kinds of attention). Choose layers= that agree (--layers)."
        )
    # Directions in which the answer does not depend on any of the heads are left out.
    left, sizes, _ = torch.linalg.svd(root.flatten(0, 1), full_matrices=False)
    needed = sizes > FLOAT32_EPS * sizes[:1].clamp_min(1e-300)
    blocks = (left * sizes)[:, needed].unflatten(0, root.shape[:2])
    whole = torch.stack(
        [one.values.double() @ block for one, block in zip(heads, blocks, strict=True)]
    )
    row = torch.cat([one.attention[query] for one in heads])
    space = joint_space(whole, seen[0], FLOAT32_EPS * max(whole.shape[1:]))
    every = torch.ones_like(row, dtype=torch.bool)
    without: dict[Address, Any] = {
        (one.layer, one.head, one.kind): Rows([query], torch.zeros(1, len(one.keys)).double())
        for one in heads
    }
    return KeptOutcome(heads[0].projected, row, space, every, 1.0, answer.change(without), answer)
