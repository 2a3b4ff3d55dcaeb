"""Every prefix of a bounded Dyck language up to a length, with its probability, for training without sampling."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from identilens.lab.dyck.embeddings import pair_symbols, symbols
from identilens.lab.dyck.language import SPECIAL, Dyck
from identilens.lab.dyck.parsing import next_token_distribution


class Prefixes(NamedTuple):
    """Kinds of prefixes for a model without positions: prefixes with the same last symbol and counts are one kind.

    Attributes:
        last: The last symbol of each kind, numbered as in `embeddings.symbols`.
        counts: How often each symbol occurs.
        law: Distribution of the next token (Wen et al. 2023, Eq. 3).
        share: Probability of the kind.
    """

    last: Int[Tensor, " prefix"]
    counts: Int[Tensor, "prefix symbol"]
    law: Float[Tensor, "prefix token"]
    share: Float[Tensor, " prefix"]


def all_prefixes(language: Dyck, length: int) -> Prefixes:
    """Return the prefixes of 0 to ``length`` − 1 brackets by Definition 1; all lengths are equally probable.

    The numbers of open minus closing brackets, by type and depth, give the stack. So the counts determine the
    distribution of the next token.
    """
    opens, closes = pair_symbols(language)
    last, share = torch.tensor([0]), torch.ones(1, dtype=torch.float64)
    counts, lengths = one_hot(last, symbols(language)), []
    for _ in range(length):
        unmatched = counts[:, opens] - counts[:, closes]
        depth = unmatched.sum((1, 2))
        top = unmatched[torch.arange(len(depth)), :, depth - 1].argmax(1)
        law = next_token_distribution(language, depth, top)
        lengths.append((last, counts, law, share))
        rows, brackets = law[:, SPECIAL:].nonzero(as_tuple=True)
        level = depth[rows] - (brackets >= language.types).long()
        last = 1 + brackets * language.max_depth + level
        counts = counts[rows] + one_hot(last, symbols(language))
        keys, inverse = torch.cat([last[:, None], counts], 1).unique(dim=0, return_inverse=True)
        last, counts = keys[:, 0], keys[:, 1:]
        added = law[rows, SPECIAL + brackets] * share[rows]
        share = added.new_zeros(len(keys)).index_add_(0, inverse, added)
    last, counts, law, share = map(torch.cat, zip(*lengths, strict=True))
    return Prefixes(last, counts, law, share / length)
