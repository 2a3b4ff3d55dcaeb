"""Training, validation and test parts of a corpus; no sentence is split between parts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from jaxtyping import Int
from torch import Tensor

from identilens.errors import InputError

PAPER_SHARES = (0.7, 0.15, 0.15)
PAPER_FOLDS = 10


@dataclass(frozen=True)
class Split:
    """The sentences for training (in random order), validation and test of a fold, from 0; the parts are disjoint."""

    fold: int
    train: tuple[int, ...]
    validation: tuple[int, ...]
    test: tuple[int, ...]


def split_sentences(
    sentences: int,
    *,
    folds: int = PAPER_FOLDS,
    seed: int = 0,
) -> list[Split]:
    """Return one split per fold, each with 70/15/15 % of the sentences for training, validation and test.

    Ten folds with 15 % test sentences (Brunner et al. 2020, 4.1) cannot have disjoint test parts. Here the sentences
    are shuffled once and placed on a circle. Fold f starts at the f-th of ``folds`` equally spaced points: the first
    15 % of the circle from there are the test part, the next 15 % the validation part, the rest the training part.
    With at least 7 folds, every sentence is in a test part, about equally often (once or twice with 10 folds).

    Examples:
        >>> from identilens.measures.tokens.splits import split_sentences
        >>> split = split_sentences(20, folds=5)[0]
        >>> len(split.train), len(split.validation), len(split.test)
        (14, 3, 3)

    Raises:
        InputError: No sentences, fewer sentences than folds, or too few for three parts.
    """
    validation, test = (max(1, round(share * sentences)) for share in PAPER_SHARES[1:])
    if validation + test >= sentences:
        raise InputError(
            f"expected enough sentences for training, validation and test, got {sentences}, of which "
            f"{validation} would validate and {test} test; use more text"
        )
    order = torch.randperm(sentences, generator=torch.Generator().manual_seed(seed)).tolist()
    splits = []
    for fold in range(folds):
        start = fold * sentences // folds
        circle = tuple(order[start:] + order[:start])
        splits.append(
            Split(
                fold, circle[test + validation :], circle[test : test + validation], circle[:test]
            )
        )
    return splits


def keep_training_share(split: Split, share: float) -> Split:
    """Return the split with only a share of its training sentences; a smaller share is a subset of a larger one.

    For Brunner et al. 2020, B.2: 50, 80, 90 and 100 % of the training data, with the same validation and test parts. At
    least one training sentence remains.

    Examples:
        >>> from identilens.measures.tokens.splits import keep_training_share, split_sentences
        >>> split = split_sentences(20, folds=5)[0]
        >>> len(keep_training_share(split, 0.5).train)
        7
    """
    return replace(split, train=split.train[: max(1, round(share * len(split.train)))])


def token_rows(
    lengths: Sequence[int], sentences: Sequence[int], *, offset: int = 0
) -> Int[Tensor, " row"]:
    """Return the rows of the tokens of the chosen sentences, in this order, in a corpus stored sentence by sentence.

    With an offset k, only tokens i whose neighbour i + k is in the same sentence are included (Brunner et al. 2020,
    B.5). The row of the neighbour is the returned row plus k; k is negative for neighbours to the left.

    Examples:
        >>> from identilens.measures.tokens.splits import token_rows
        >>> token_rows([3, 2, 4], [2, 0])
        tensor([5, 6, 7, 8, 0, 1, 2])
    """
    starts = [0, *accumulate(lengths)]
    rows = []
    for sentence in sentences:
        first = starts[sentence] + max(0, -offset)
        rows.append(torch.arange(first, max(first, starts[sentence + 1] - max(0, offset))))
    return torch.cat(rows) if rows else torch.empty(0, dtype=torch.int64)
