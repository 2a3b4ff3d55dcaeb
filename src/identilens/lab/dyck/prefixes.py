"""Every prefix of a bounded Dyck language up to a length, with its probability, for training without sampling."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.lab.dyck.embeddings import pair_symbols, symbols
from identilens.lab.dyck.language import SPECIAL, Dyck
from identilens.lab.dyck.parsing import next_token_distribution


@dataclass(frozen=True, eq=False)
class Prefixes:
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
    counts = torch.nn.functional.one_hot(torch.tensor([0]), symbols(language))
    empty = Prefixes(
        counts.argmax(1), counts, _law(language, counts), torch.ones(1, dtype=torch.float64)
    )
    lengths = [empty]
    for _ in range(length - 1):
        lengths.append(_longer(language, lengths[-1]))
    last = torch.cat([part.last for part in lengths])
    counts = torch.cat([part.counts for part in lengths])
    share = torch.cat([part.share for part in lengths]) / length
    return Prefixes(last, counts, _law(language, counts), share)


def _longer(language: Dyck, prefixes: Prefixes) -> Prefixes:
    """Return the prefixes with one more bracket."""
    opens, closes = pair_symbols(language)
    depth, top = _stack(language, prefixes.counts)
    opening, closing = depth < language.max_depth, depth > 0
    sources = [opening.nonzero()[:, 0]] * language.types + [closing.nonzero()[:, 0]]
    added = [symbol[depth[opening]] for symbol in opens] + [
        closes[top[closing], depth[closing] - 1]
    ]
    tokens = [SPECIAL + kind for kind in range(language.types)]
    shares = [prefixes.law[opening, token] * prefixes.share[opening] for token in tokens]
    shares.append(
        prefixes.law[closing, SPECIAL + language.types + top[closing]] * prefixes.share[closing]
    )
    last = torch.cat(added)
    counts = prefixes.counts[torch.cat(sources)] + torch.nn.functional.one_hot(
        last, symbols(language)
    )
    keys, inverse = torch.cat([last[:, None], counts], 1).unique(dim=0, return_inverse=True)
    share = torch.zeros(len(keys), dtype=torch.float64).index_add_(0, inverse, torch.cat(shares))
    return Prefixes(keys[:, 0], keys[:, 1:], _law(language, keys[:, 1:]), share)


def _stack(language: Dyck, counts: Tensor) -> tuple[Int[Tensor, " prefix"], Int[Tensor, " prefix"]]:
    """Return depth and type of the last unmatched bracket; 0 if there is none."""
    opens, closes = pair_symbols(language)
    unmatched = counts[:, opens] - counts[:, closes]
    depth = unmatched.sum((1, 2))
    rows = torch.arange(len(counts))
    return depth, unmatched[rows, :, (depth - 1).clamp_min(0)].argmax(1)


def _law(language: Dyck, counts: Tensor) -> Float[Tensor, "prefix token"]:
    return next_token_distribution(language, *_stack(language, counts))
