"""How much attention each head has on published patterns, and how much of that every alternative has."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.measures.attention.detectors import PATTERNS, pattern_keys
from identilens.measures.attention.row_solver import ORDER_MARGIN, RowSolver
from identilens.models.capture import Collector
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.runs.conllu import TaggedText
from identilens.runs.settings import LIST, NonNegative, Part, Positive
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, Tables, table_of
from identilens.studies.heads import KindSettings, TextStudy
from identilens.studies.items import Items, token_places, word_at
from identilens.studies.outcomes import Tolerance, ToleranceSettings, of_head
from identilens.studies.patterns.result import MEANS, PatternScores

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


@dataclass(frozen=True, kw_only=True)
class PatternSettings(ToleranceSettings, KindSettings):
    """Which patterns of which heads, on how many rows.

    Attributes:
        pattern: Patterns: previous, next, current, first, duplicate, induction, separator, punctuation. Default: these.
            Of sentences from a treebank also arcs, or single relations, such as "nsubj to head" or "nsubj from head".
        rows: Rows (or arcs) of each text and pattern that the score rests on, drawn by the seed from those that have
            the pattern.
        least_score: Score from which on a head is called by the pattern.
        repeated: Tokens of a random sequence that stands twice in a row, as further texts; 0 for none. Induction is
            usually measured on them.
        sequences: Number of such texts.
        seed: Seed of the drawn rows, of random sequences, and of the bootstrap.
    """

    pattern: Annotated[tuple[str, ...], LIST] = tuple(PATTERNS)
    rows: Positive = 8
    least_score: Part = 0.4
    repeated: NonNegative = 0
    sequences: Positive = 4
    seed: NonNegative = 0

    def check(self) -> None:
        """Check the names of the patterns, and that tolerances can be read."""
        known = all(one in (*PATTERNS, ARCS) or ARC.fullmatch(one) for one in self.pattern)
        if not self.pattern or not known:
            words = (
                f"as some of {', '.join([*PATTERNS, ARCS])}, or a relation such as 'nsubj to head'"
            )
            raise SettingError("pattern", words, self.pattern)
        if self.kind == "cross":
            raise SettingError(
                "kind", "to be encoder or decoder: patterns are of self-attention", self.kind
            )
        super().check()


class PatternStudy(TextStudy[PatternSettings, PatternScores]):
    """Score every head on published patterns of attention, and bound the scores over all alternatives.

    The score is the mean attention to the keys that a pattern names (the previous token, tokens that followed the same
    token before, a word's syntactic head, and others), over rows drawn by the seed. Rows choose independently, so the
    mean of the proven ends of the rows is a proven interval of the score: what the head could show with the same output
    in every row. Apart from it stands a bootstrap interval over texts. Patterns:
    `identilens.measures.attention.pattern_keys`; protocol: docs/patterns.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.patterns(lens, idl.examples()[0], pattern="previous,separator", layers=3, heads=(0, 9), rows=2)
        >>> found.by_head().select("pattern", "head", "rows").rows()
        [('previous', 0, 2), ('separator', 0, 2), ('previous', 9, 2), ('separator', 9, 2)]
    """

    name = "patterns"
    settings_type = PatternSettings
    result_type = PatternScores

    def __init__(self, lens: Lens, texts: Any, settings: PatternSettings) -> None:
        super().__init__(lens, texts, settings)
        self.given = len(self.items)
        self.arcs = not {*settings.pattern} <= {*PATTERNS}
        if self.arcs:
            require_arcs(self.items)
            if settings.max_length is not None:
                words = "to be left out: arcs are of whole sentences"
                raise SettingError("max_length", words, settings.max_length)
        if settings.repeated:
            # Random sequences, each twice in a row, that begin as the first text does.
            special = getattr(lens.tokenizer, "all_special_ids", [])
            usual = [
                one
                for one in range(lens.model.config.get_text_config().vocab_size)
                if one not in special
            ]
            first = int(self.items[0].tensors["input_ids"][0])
            generator = torch.Generator().manual_seed(settings.seed)
            drawn = torch.randint(
                len(usual), (settings.sequences, settings.repeated), generator=generator
            )
            texts = [[first, *2 * [usual[place] for place in row]] for row in drawn.tolist()]
            entries = [*self.items.entries, *lens.read(texts)]
            self.items = Items(lens, entries, settings.max_length)
        sites = lens.sites(self.items[0])
        chosen = chosen_heads(sites, settings.layers, settings.heads, settings.kind)
        self.chosen = {(sites.index(site), head) for site, head in chosen if site.kind != "cross"}
        self.tolerances = settings.read_tolerances(lens.dtype)

    def run(self, part: int) -> Output:
        """Return the scores of all heads on one text."""
        item, rows, known = self.items[part], [], {}
        collector = Collector(self.lens.sites(item), [item], weights=True)
        self.lens.run([item], collector)
        corpus = "texts" if part < self.given else "repeated"
        for number, layer in enumerate(collector.layers[0]):
            window = b"" if layer.visible is None else layer.visible.numpy().tobytes()
            for index, head in enumerate(layer.heads):
                if (number, index) not in self.chosen:
                    continue
                head.refuse_sink()
                if (head.kind, window) not in known:
                    known[head.kind, window] = self._drawn(part, item, head)
                keys = known[head.kind, window]
                at = {
                    "text": part,
                    "layer": head.layer,
                    "head": index,
                    "kind": head.kind,
                    "corpus": corpus,
                }
                rows += [
                    {**at, **one}
                    for tolerance in self.tolerances
                    for one in _scores(head, keys, tolerance)
                ]
            self.tell(f"text {part}, layer {number}")
        return Output({"table": table_of(PatternScores.schema["table"], rows)})

    def finish(self, tables: Tables) -> Output:
        """Check that there is something to score."""
        if tables["table"].is_empty():
            raise InputError(
                f"no row of the texts has a pattern of {', '.join(self.settings.pattern)} and other keys besides. "
                "Choose other texts or another pattern."
            )
        return Output(tables)

    def _drawn(self, part: int, item: Item, head: Head) -> dict[str, list[Case]]:
        """Return the cases of each pattern that are drawn."""
        side = sides(head.kind, item.tokens).query
        names = names_at(item.tokens, side, len(head.queries), self.lens.model.config)
        generator = torch.Generator().manual_seed(self.settings.seed + part)
        cases: dict[str, list[Case]] = {}
        # The sequences that an encoder-decoder writes, and random ones, have no arcs.
        tagged = self.arcs and part < self.given and side == "encoder"
        arcs = arc_cases(item, self.lens.tokenizer, head) if tagged else {}
        for pattern in self.settings.pattern:
            if pattern in PATTERNS:
                cases[pattern] = token_cases(pattern, names, head)
            else:
                cases |= arcs if pattern == ARCS else {pattern: arcs.get(pattern, [])}
        drawn = {}
        for pattern, own in cases.items():
            order = torch.randperm(len(own), generator=generator)[: self.settings.rows].tolist()
            drawn[pattern] = [own[place] for place in order]
        return drawn


patterns = study_function(PatternStudy, "patterns")


def _scores(head: Head, drawn: Mapping[str, Sequence[Case]], tolerance: Tolerance) -> Iterator[Row]:
    """Yield the score of a head on each pattern, and its ends: the means over the cases of the pattern."""
    programs = HeadPrograms(head, tolerance)
    cases = [case for own in drawn.values() for case in own]
    if not cases:
        return
    values = [case.value for case in cases]
    negated = [{query: -share for query, share in value.items()} for value in values]
    lo, minus_hi = programs.least([*values, *negated]).unflatten(0, (2, -1))
    scores = torch.tensor([programs.value(value) for value in values], dtype=torch.float64)
    first = torch.tensor([programs.is_largest(case) for case in cases], dtype=torch.float64)
    numbers = torch.stack([scores, lo, -minus_hi, *first.reshape(-1, 2).T])
    sizes = [len(own) for own in drawn.values()]
    for pattern, own in zip(drawn, numbers.split(sizes, dim=1), strict=True):
        if own.numel():
            named = dict(zip(MEANS, own.mean(1).tolist(), strict=True))
            yield {"pattern": pattern, "tolerance": tolerance.name, "rows": own.shape[1], **named}


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
                f"{item.text!r:.60} has no dependency arcs. Take sentences of a treebank (.conllu), "
                "or leave out the patterns of arcs."
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
                one is None or (share * one).any()
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
            kept = of_head(head.attention[query], head.at(query), head.seen(query))
            self._solvers[query] = kept.solver(kept.allowed(self.tolerance))
        return self._solvers[query]

    def value(self, one: Sum) -> float:
        """Return a sum of the weights as they are."""
        rows = {query: self.head.attention[query] for query in one}
        return sum(float(share @ rows[query]) for query, share in one.items())

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
