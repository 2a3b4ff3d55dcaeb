"""Scores of simple patterns in a structure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.weights import normalise_rows

Pattern = Literal["diagonal", "offset", "antidiagonal", "local", "block", "vertical", "uniform"]
LEAST_SCORE = 0.25
"""A structure whose best score is below this has no pattern ("mixed")."""
OFFSETS = (-3, -2, -1, 1, 2, 3)
REACH = 3
"""Keys up to this distance from the query are local."""


@dataclass(frozen=True)
class PatternScore:
    """How well one pattern describes a structure.

    Attributes:
        pattern: Name of the pattern.
        score: In [0, 1]: 1 for the exact pattern, 0 for uniform rows. For the uniform pattern, 0 means one key per row.
        place: Offset of the diagonal (offset), column (vertical), or first position of the second block (block).
    """

    pattern: Pattern
    score: float
    place: int | None = None


def pattern_scores(
    weights: Float[Tensor, "q k"], special: Sequence[int] | None = None
) -> tuple[PatternScore, ...]:
    """Return the score of each pattern, in the order of `Pattern`.

    Rows are normalised first. Scores are (m − u) / (1 − u), at least 0, where u is the value of m for uniform rows. For
    diagonal, offset, antidiagonal, local and vertical, m is the mean mass of a row on the pattern. offset: the best
    offset from −3 to 3 without 0, over the rows where it is inside the matrix (negative: earlier keys). local: all keys
    at a distance of up to 3. vertical: the best single column among the special tokens, or among all columns if none
    are given. block: the text has two blocks; m is the mean overlap Σ min of a row with the row that is uniform on its
    own block and zero on the other, at the best boundary between a quarter and three quarters of the text. uniform:
    1 − the mean total variation distance of the rows from uniform rows, as a share of the largest possible distance.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import pattern_scores
        >>> from identilens.measures.structure.patterns import pattern_of
        >>> scores = pattern_scores(torch.eye(6))
        >>> pattern_of(scores)
        PatternScore(pattern='diagonal', score=1.0, place=None)
    """
    rows = normalise_rows(weights.double())
    n_query, n_key = rows.shape
    share = 1 / n_key
    # Queries whose diagonal is outside the matrix are left out.
    inside = [place for place in OFFSETS if abs(place) < min(n_query, n_key)]
    offsets = {place: _above(float(rows.diagonal(place).mean()), share) for place in inside}
    best = max(offsets, key=lambda place: offsets[place], default=None)
    near = [
        rows.diagonal(place) for place in range(-min(REACH, n_query - 1), min(REACH, n_key - 1) + 1)
    ]
    column = max(special or range(n_key), key=lambda place: float(rows[:, place].mean()))
    far = 0.5 * (rows - share).abs().sum(-1) / max(1e-12, 1 - share)
    # A row of zeros does not count as uniform.
    even = float(((1 - far) * (rows.sum(-1) > 0)).mean()) if n_key > 1 else 1.0
    local = _above(
        float(sum(line.sum() for line in near)) / n_query, sum(map(len, near)) / rows.numel()
    )
    return (
        PatternScore("diagonal", _above(float(rows.diagonal().mean()), share)),
        PatternScore("offset", offsets[best] if best is not None else 0.0, best),
        PatternScore("antidiagonal", _above(float(rows.flip(-1).diagonal().mean()), share)),
        PatternScore("local", local),
        _block(rows),
        PatternScore("vertical", _above(float(rows[:, column].mean()), share), column),
        PatternScore("uniform", min(1.0, max(0.0, even))),
    )


def pattern_of(scores: Sequence[PatternScore]) -> PatternScore | None:
    """Return the pattern with the largest score; None if all are below `LEAST_SCORE` ("mixed").

    "local" includes the diagonal and the offsets. It is returned only if none of them has half of its score.

    Examples:
        >>> import torch
        >>> from identilens.measures.structure import pattern_scores
        >>> from identilens.measures.structure.patterns import pattern_of
        >>> pattern_of(pattern_scores(torch.full((6, 6), 1 / 6)))
        PatternScore(pattern='uniform', score=1.0, place=None)
    """
    best = max(scores, key=lambda entry: entry.score)
    if best.pattern == "local":
        lines = (entry for entry in scores if entry.pattern in ("diagonal", "offset"))
        single = max(lines, key=lambda entry: entry.score)
        best = single if single.score >= max(LEAST_SCORE, best.score / 2) else best
    return best if best.score >= LEAST_SCORE else None


def _above(mass: float, chance: float) -> float:
    return min(1.0, max(0.0, (mass - chance) / (1 - chance))) if chance < 1 else 0.0


def _block(rows: Tensor) -> PatternScore:
    n_query, n_key = rows.shape
    best = PatternScore("block", 0.0, None)
    for place in range(max(1, n_key // 4), min(n_key - 1, n_key - n_key // 4) + 1):
        inside = (torch.arange(n_query)[:, None] < place) == (torch.arange(n_key)[None] < place)
        template = normalise_rows(inside.double().to(rows.device))
        shared = float(torch.minimum(rows, template).sum(-1).mean())
        score = _above(shared, float(template.clamp_max(1 / n_key).sum(-1).mean()))
        if score > best.score:
            best = PatternScore("block", score, place)
    return best
