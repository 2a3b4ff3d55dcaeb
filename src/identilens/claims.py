"""Claims on rows of attention: a weight, the mass on words or a segment, a difference, a pattern, a source.

A claim is a linear functional of a row: a name, a coefficient for each key, and what is said of its value. All
functionals are made here, and `identilens.certify` proves the ends of each in the same way.
"""

import hashlib
import re
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.measures.attention.detectors import PATTERNS, pattern_keys
from identilens.measures.attention.row_programs import ORDER_MARGIN
from identilens.models.chats import read_place
from identilens.models.heads import Head
from identilens.models.spelling import Spelling

__all__ = [
    "Claim",
    "difference",
    "order",
    "pattern",
    "segment",
    "source",
    "weight",
]

TRUE, FALSE, OPEN = (
    "true in every alternative",
    "false in every alternative",
    "neither proven nor refuted",
)
"""Verdicts of a comparison."""

_FORM = re.compile(r"\s*([^<>]*[^<>\s])\s*(?:([<>])\s*([^<>]*[^<>\s])\s*)?")
_LIKE = (
    "like 'storm > ferry', 'the storm > 0.3' or 'the storm'; for words that are numbers, make "
    "the claim with identilens.claims.weight or order"
)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)

_COMPARED = 3
"""Segments that are named at most where each is compared with every other one."""

Keys = int | str
"""A key by its position, negative ones from the end, or all keys that spell some words."""


@dataclass(frozen=True)
class ClaimRow:
    """The row of attention that a claim is about.

    Attributes:
        head: The head, on one text. Its weights may be those of some rows only: take ``head.row(query)``.
        query: Position of the row.
        tokens: What stands at each key.
        text: Number of the text.
        spelling: What the tokens spell; their names by default.
        moves: Whether alternatives may change what the head adds.
    """

    head: Head
    query: int
    tokens: Sequence[str]
    text: int
    spelling: Spelling | None = None
    moves: bool = False


Counting = Callable[[ClaimRow], Float[Tensor, " key"] | None]
"""Gives the coefficient of each key, None for a row that a claim is not about: a `partial` of a module's function."""


@dataclass(frozen=True, eq=False)
class Claim:
    """A linear functional of a row of attention, and what is said of its value.

    Attributes:
        words: The claim in short; it names it in tables.
        subject: What the value is, in words.
        counting: The coefficients.
        sign: ``>``, ``<``, or nothing.
        bound: The number that the value is compared with.
        digest: Sha256 of the numbers that the words do not tell.

    Examples:
        >>> import identilens as idl
        >>> claim = idl.claims.Claim.read("the storm > 0.3")
        >>> claim.subject, claim.sign, claim.bound
        ("attention to 'the storm'", '>', 0.3)
    """

    words: str
    subject: str
    counting: Counting
    sign: str = ""
    bound: float = 0.0
    digest: str = ""

    @classmethod
    def read(cls, words: str) -> "Claim":
        """Return a claim from its words.

        Raises:
            SettingError: If they have another form.
        """
        match = _FORM.fullmatch(words) if isinstance(words, str) else None
        if match is None or (match[3] and _NUMBER.fullmatch(match[1])):
            raise SettingError("claim", _LIKE, words)
        left, sign, right = match.groups("")
        claim = weight(left)
        if _NUMBER.fullmatch(right):
            claim = replace(claim, bound=float(right))
        elif right:
            claim = order(left, right)
        return replace(claim, words=words, sign=sign)

    @property
    def recorded(self) -> str:
        """The claim as provenance has it: the words, and what they leave out."""
        return ", ".join(filter(None, [self.words, self.digest]))

    def above(self, bound: float, sign: str = ">") -> "Claim":
        """Return the claim that the value is above a number."""
        return replace(
            self, words=f"{self.words} {sign} {bound:.12g}", sign=sign, bound=float(bound)
        )

    def below(self, bound: float) -> "Claim":
        """Return the claim that the value is below a number."""
        return self.above(bound, "<")

    def verdict(self, lo: float, hi: float) -> str | None:
        """Return what the ends of an interval say of the claim; None where nothing is compared."""
        return verdict_of(self.sign, self.bound, lo, hi)


def verdict_of(sign: str, bound: float, lo: float, hi: float) -> str | None:
    """Return what the ends of an interval say of the claim that the value is above (>) or below (<) a bound."""
    if not sign:
        return None
    above, below = lo > bound + ORDER_MARGIN, hi < bound - ORDER_MARGIN
    if above or below:
        return TRUE if above == (sign == ">") else FALSE
    return OPEN


def weight(key: Keys) -> Claim:
    """Return a claim on the weight of a key, or on the sum of the weights of every run of tokens that spells words.

    A run that the row does not see to its end does not count.

    Args:
        key: Position of the key, or words, in any case.

    Examples:
        >>> import identilens as idl
        >>> idl.claims.weight(3).above(0.2).words
        'key 3 > 0.2'
        >>> idl.claims.weight("the storm").above(0.3).verdict(0.31, 0.4)
        'true in every alternative'
    """
    subject = f"attention to {_name(key, repr)}"
    return Claim(_name(key), subject, partial(_keys, key))


def segment(name: str, span: Iterable[int] | str) -> Claim:
    """Return a claim on the attention to some keys together, such as those of a document or a question.

    Args:
        name: The name of the segment in tables.
        span: Positions of its keys; or its words, or its first character and the one after its last as ``120:480``.

    Examples:
        >>> import identilens as idl
        >>> idl.claims.segment("document 1", range(4, 20)).subject
        "attention to 'document 1'"
    """
    span = span if isinstance(span, str) else tuple(span)
    subject = f"attention to {name!r}"
    return Claim(name, subject, partial(_segment, span), digest=str(span))


def segment_keys(span: str | Sequence[int], spelling: Spelling, text: int) -> list[int]:
    """Return the keys of a segment: of characters, those that have most of theirs within it.

    Raises:
        InputError: If the text lacks it.
    """
    if not isinstance(span, str):
        return [start for key in span for start, _ in _runs(int(key), spelling, text)]
    where = read_place(span)
    if isinstance(where, str):
        return [key for start, end in _runs(where, spelling, text) for key in range(start, end)]
    first, last = where
    keys = [
        key
        for key, (start, end) in enumerate(spelling.spans)
        if 2 * (min(end, last) - max(start, first)) > end - start
    ]
    if not keys:
        raise InputError(f"text {text} has no tokens at the characters {span}.")
    return keys


def read_segment(words: str) -> tuple[str, str]:
    """Return the name of a segment and its place from ``name=words`` or ``name=first:last``.

    Raises:
        SettingError: If they have another form.
    """
    name, _, span = words.partition("=")
    if not (name and span):
        raise SettingError("segment", "as name=words or name=start:end", words)
    return name, span


def compared(named: Sequence[Claim], others: Sequence[Claim]) -> list[Claim]:
    """Return the differences of a few named segments from all others; none where more than three are named."""
    pairs = product(named, others) if len(named) <= _COMPARED else ()
    return [difference(claim, other) for claim, other in pairs if claim.words != other.words]


def functionals_of(claims: Iterable[Claim], row: ClaimRow) -> dict[Claim, Float[Tensor, " key"]]:
    """Return the claims that are about a row, each with its coefficients."""
    counted = ((claim, claim.counting(row)) for claim in claims)
    factors = {claim: keys for claim, keys in counted if keys is not None}
    if len({claim.words for claim in factors}) < len(factors):
        raise InputError("several claims or segments have one name; give each a name of its own.")
    for claim, keys in factors.items():
        if keys.shape != (len(row.tokens),):
            raise InputError(
                f"the claim {claim.words!r} needs a number for each of {len(row.tokens)} keys."
            )
    return factors


def segments_by_name(names: Sequence[str], unnamed: Container[str]) -> list[Claim]:
    """Return claims on the segment that each key is of, and on how much more a named one has than each other."""
    segments = [
        segment(name, [key for key, label in enumerate(names) if label == name])
        for name in dict.fromkeys(names)
    ]
    named = [claim for claim in segments if claim.words not in unnamed]
    return [*segments, *compared(named, segments)]


def read_claims(
    claims: Iterable[Claim | str], patterns: Iterable[str], segments: Iterable[Claim | str]
) -> list[Claim]:
    """Return claims as they are or from their words, those on patterns and segments, and on a few segments compared."""
    read = [claim if isinstance(claim, Claim) else Claim.read(claim) for claim in claims]
    named = [
        claim if isinstance(claim, Claim) else segment(*read_segment(claim)) for claim in segments
    ]
    return [*read, *map(pattern, patterns), *named, *compared(named, named)]


def difference(first: Claim, second: Claim) -> Claim:
    """Return a claim on the value of one claim less that of another.

    Examples:
        >>> import identilens as idl
        >>> idl.claims.difference(idl.claims.weight("storm"), idl.claims.weight("ferry")).words
        'storm − ferry'
    """
    return Claim(
        f"{first.words} − {second.words}",
        f"{first.subject} minus {second.subject}",
        partial(_difference, first, second),
        digest=first.digest + second.digest,
    )


def order(first: Keys, second: Keys) -> Claim:
    """Return the claim that one key, or words, gets more attention than another.

    Examples:
        >>> import identilens as idl
        >>> idl.claims.order("storm", 3).words
        'storm > key 3'
    """
    claim = difference(weight(first), weight(second))
    return replace(claim, words=f"{_name(first)} > {_name(second)}", sign=">")


def pattern(name: str) -> Claim:
    """Return a claim on the attention to the keys of a published pattern: previous token, induction and others.

    Rows in which the pattern has no key, or is all that the row sees, are left out, and all of cross-attention.

    Args:
        name: One of the names in `identilens.measures.attention.PATTERNS`.

    Raises:
        SettingError: For an unknown pattern.

    Examples:
        >>> import identilens as idl
        >>> idl.claims.pattern("previous").above(0.5).subject
        'attention to the previous token'
    """
    if name not in PATTERNS:
        raise SettingError("pattern", f"to be one of {', '.join(PATTERNS)}", name)
    return Claim(name, f"attention to {PATTERNS[name]}", partial(_pattern, name))


def source(
    direction: Float[Tensor, " d_model"],
    key: Keys | None = None,
    *,
    name: str = "the direction",
) -> Claim:
    """Return a claim on what keys add to a direction of the residual stream: Σ a_j c_j with c_j = t_j·u.

    Args:
        direction: u, such as a probe, a feature, or an unembedding with the scale of the final norm.
        key: The key, or words, whose part counts; all keys by default.
        name: What the direction is called in tables.

    Raises:
        SettingError: For a direction that is no vector of finite numbers.

    Examples:
        >>> import identilens as idl
        >>> import torch
        >>> idl.claims.source(torch.ones(384), "tailor", name="the sum").above(0.0).words
        'tailor → the sum > 0'
    """
    if not isinstance(direction, Tensor) or direction.ndim != 1 or not direction.isfinite().all():
        raise SettingError("direction", "as a tensor of d_model finite numbers", direction)
    u = direction.detach().cpu().double()
    return Claim(
        f"{_name(key)} → {name}",
        f"what {_name(key, repr)} adds to {name}",
        partial(_source, u, key),
        digest=hashlib.sha256(u.numpy().tobytes()).hexdigest()[:16],
    )


def row_sources(
    row: ClaimRow, direction: Float[Tensor, " d_model"], name: str
) -> dict[Claim, Float[Tensor, " key"]]:
    """Return what each key that a row sees adds to a direction: a claim on each, with its coefficients."""
    added, visible = _source(direction, None, row), row.head.visible_to(row.query)
    keys = range(len(added)) if visible is None else visible.nonzero()[:, 0].tolist()
    claim = source(direction, name=name)
    return {
        replace(claim, words=f"key {key} → {name}", subject=f"what key {key} adds to {name}"): unit
        for key, unit in zip(keys, torch.diag(added)[keys], strict=True)
    }


def _name(key: Keys | None, form: Callable[[str], str] = str) -> str:
    if key is None:
        return "all keys"
    return f"key {key}" if isinstance(key, int) else form(key)


def _keys(key: Keys, row: ClaimRow) -> Float[Tensor, " key"]:
    """Return 1 for a key, or each token of a run that spells words and is seen to its end; 0 for others."""
    factors, visible = (
        torch.zeros(len(row.tokens), dtype=torch.float64),
        row.head.visible_to(row.query),
    )
    for start, end in _runs(key, row.spelling or Spelling(row.tokens), row.text):
        factors[start:end] = float(visible is None or visible[start:end].all())
    return factors


def _runs(key: Keys, spelling: Spelling, text: int) -> list[tuple[int, int]]:
    """Return the runs of tokens that a key stands for: first token, and the one after the last.

    Raises:
        InputError: If the text lacks it.
    """
    tokens = spelling.tokens
    if isinstance(key, int):
        if not -len(tokens) <= key < len(tokens):
            raise InputError(f"text {text} has keys 0 to {len(tokens) - 1}; got {key}.")
        return [(key % len(tokens), key % len(tokens) + 1)]
    if runs := spelling.runs(key):
        return runs
    raise InputError(
        f"text {text}: no run of tokens spells {key!r}; its tokens are {', '.join(map(repr, tokens[:20]))}"
        f"{' …' if len(tokens) > 20 else ''}."
    )


def _segment(span: str | Sequence[int], row: ClaimRow) -> Float[Tensor, " key"]:
    factors = torch.zeros(len(row.tokens), dtype=torch.float64)
    factors[segment_keys(span, row.spelling or Spelling(row.tokens), row.text)] = 1.0
    return factors


def _difference(first: Claim, second: Claim, row: ClaimRow) -> Float[Tensor, " key"] | None:
    more, less = first.counting(row), second.counting(row)
    return None if more is None or less is None else more - less


def _pattern(name: str, row: ClaimRow) -> Float[Tensor, " key"] | None:
    if row.head.kind == "cross":
        return None
    keys = pattern_keys(name, row.tokens, row.query, row.head.visible_to(row.query))
    return None if keys is None else keys.double()


def _source(u: Tensor, key: Keys | None, row: ClaimRow) -> Float[Tensor, " key"]:
    if row.head.site.normed and row.moves:
        raise InputError(
            f"{row.head.kind} layer {row.head.layer} normalises what its heads mix before it adds it, so that what a "
            "key adds along a direction depends on the whole row. Choose the outcome head and the tolerance 0, or "
            "leave sources out."
        )
    projection = row.head.row_projection(row.query)
    if len(u) != projection.shape[1]:
        raise InputError(
            f"the direction has {len(u)} entries, and the model's residual stream {projection.shape[1]}. Pass a "
            "direction of the residual stream."
        )
    added = (row.head.values.double() @ (projection @ u.to(projection))).cpu()
    return added if key is None else added * _keys(key, row)
