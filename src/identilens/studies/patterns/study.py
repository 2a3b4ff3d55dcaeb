"""How much attention each head has on published patterns, and how much of that every alternative has."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.claims import ClaimRow, pattern
from identilens.errors import InputError, SettingError
from identilens.measures.attention.detectors import PATTERNS
from identilens.measures.attention.row_solver import ORDER_MARGIN, RowSolver
from identilens.models.capture import Collector
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens
from identilens.models.sequences import names_at, sides
from identilens.runs.conllu import TaggedText
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, Tables, table_of
from identilens.studies.certify.rows import functional_ends
from identilens.studies.drawn import drawn_rows
from identilens.studies.heads import TextStudy
from identilens.studies.items import Items, token_places, word_at
from identilens.studies.outcomes import of_head
from identilens.studies.patterns.result import MEANS, PatternScores
from identilens.studies.patterns.settings import ARCS, PatternSettings
from identilens.studies.settings import Tolerance

Case = Mapping[int, Float[Tensor, "functional key"]]
"""One place of a pattern: coefficients of its keys in each row; then of how much more it has than each rival."""


class PatternStudy(TextStudy[PatternSettings, PatternScores]):
    """Score every head on published patterns of attention, and bound the scores over all alternatives.

    The score is the mean attention to the keys that a pattern names (the previous token, tokens that followed the same
    token before, a word's syntactic head, and others), over rows drawn by the seed. Rows choose independently, so the
    mean of the proven ends of the rows is a proven interval of the score: what the head could show with the same output
    in every row. Patterns:
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
        >>> found.by_head().select("pattern", "name", "rows").rows()
        [('previous', 'L3H0', 2), ('separator', 'L3H0', 2), ('previous', 'L3H9', 2), ('separator', 'L3H9', 2)]
    """

    name = "patterns"
    settings_type = PatternSettings
    result_type = PatternScores

    def __init__(self, lens: Lens, texts: Any, settings: PatternSettings) -> None:
        super().__init__(lens, texts, settings)
        self.given = len(self.items)
        self.patterns = settings.pattern or tuple(PATTERNS)
        self.arcs = not {*self.patterns} <= {*PATTERNS}
        tagged = all(isinstance(item.text, TaggedText) for item in self.items)
        if self.arcs and not (tagged and settings.max_length is None):
            words = "of arcs with whole sentences of a treebank (.conllu), without max_length"
            raise SettingError("pattern", words, settings.pattern)
        if settings.repeated:
            entries = [*self.items.entries, *lens.read(self._repeated())]
            self.items = Items(lens, entries, settings.max_length)
        sites = lens.sites(self.items[0])
        chosen = chosen_heads(sites, settings.layers, settings.heads, settings.kind)
        self.chosen = {(sites.index(site), head) for site, head in chosen if site.kind != "cross"}
        self.tolerances = settings.read_tolerances(lens.dtype)

    def _repeated(self) -> list[list[int]]:
        """Return random sequences, each twice in a row, that begin as the first text does."""
        settings, special = self.settings, getattr(self.lens.tokenizer, "all_special_ids", [])
        size = self.lens.model.config.get_text_config().vocab_size
        usual = torch.tensor([one for one in range(size) if one not in special])
        generator = torch.Generator().manual_seed(settings.seed)
        shape = settings.sequences, settings.repeated
        drawn = usual[torch.randint(len(usual), shape, generator=generator)].tolist()
        first = int(self.items[0].tensors["input_ids"][0])
        return [[first, *row, *row] for row in drawn]

    def run(self, part: int) -> Output:
        """Return the scores of all heads on one text."""
        item, rows = self.items[part], []
        collector = Collector(self.lens.sites(item), [item], weights=True)
        self.lens.run([item], collector)
        corpus = "texts" if part < self.given else "repeated"
        for number, layer in enumerate(collector.layers[0]):
            heads = [head for head in layer.heads if (number, head.head) in self.chosen]
            drawn = self._drawn(part, item, heads[0]) if heads else {}
            for head, tolerance in product(heads, self.tolerances):
                head.refuse_sink()
                at = {"text": part, "layer": head.layer, "head": head.head, "kind": head.kind}
                at |= {"corpus": corpus, "tolerance": tolerance.name}
                rows += [{**at, **score} for score in _scores(head, drawn, tolerance)]
            self.tell(f"text {part}, layer {number}")
        return Output({"table": table_of(PatternScores.schema["table"], rows)})

    def finish(self, tables: Tables) -> Output:
        """Check that there is something to score."""
        if tables["table"].is_empty():
            raise InputError(
                f"no row of the texts has a pattern of {', '.join(self.patterns)} and other keys besides. "
                "Choose other texts or another pattern."
            )
        return Output(tables)

    def _drawn(self, part: int, item: Item, head: Head) -> dict[str, list[Case]]:
        """Return the cases of each pattern that are drawn; heads of a layer have the same."""
        side = sides(head.kind, item.tokens).query
        names = names_at(item.tokens, side, len(head.queries), self.lens.model.config)
        rows = [ClaimRow(head, query, names, part) for query in range(len(names))]
        # The sequences that an encoder-decoder writes, and random ones, have no arcs.
        tagged = self.arcs and part < self.given and side == "encoder"
        arcs = arc_cases(item, self.lens.tokenizer, head) if tagged else {}
        cases: dict[str, list[Case]] = {}
        for name in self.patterns:
            if name in PATTERNS:
                keys = [(row.query, pattern(name).coefficients(row)) for row in rows]
                cases[name] = [{query: one[None]} for query, one in keys if one is not None]
            else:
                cases |= arcs if name == ARCS else {name: arcs.get(name, [])}
        place = self.settings.seed, part, head.layer, head.kind
        return {
            name: [own[at] for at in drawn_rows(*place, len(own), self.settings.rows)]
            for name, own in cases.items()
        }


patterns = study_function(PatternStudy, "patterns")


def _scores(head: Head, drawn: Mapping[str, Sequence[Case]], tolerance: Tolerance) -> Iterator[Row]:
    """Yield the score of a head on each pattern, and its ends: the means over the cases of the pattern.

    Rows change independently of each other, so that ends of sums over rows are sums of ends.
    """

    @cache
    def solver(query: int) -> RowSolver:
        kept = of_head(head.attention[query], head.at(query), head.seen(query))
        return kept.solver(kept.allowed(tolerance))

    def ends(case: Case, asked: slice) -> Float[Tensor, "three chosen"]:
        rows = [functional_ends(solver(q), c[asked, solver(q).keys]) for q, c in case.items()]
        return torch.stack(rows).sum(0)

    for name, cases in drawn.items():
        numbers = []
        for case in cases:
            query, own = next(iter(case.items()))
            if name in PATTERNS:
                largest = bool(own[0, head.attention[query].argmax()])
                certain = largest and solver(query).top(None) is not None
            else:
                apart = torch.stack([c[1:] @ head.attention[q] for q, c in case.items()]).sum(0)
                largest = bool((apart > 0).all())
                certain = largest and bool((ends(case, slice(1, None))[1] > ORDER_MARGIN).all())
            numbers.append([*ends(case, slice(1))[:, 0].tolist(), largest, certain])
        if cases:
            means = torch.tensor(numbers, dtype=torch.float64).mean(0).tolist()
            yield {"pattern": name, "rows": len(cases), **dict(zip(MEANS, means, strict=True))}


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
    found: dict[str, list[Case]] = {}
    for number in pieces:
        above, relation = text.words[number].head, text.words[number].relation
        if above not in pieces:
            continue
        words = [above, *(one for one in pieces if one not in (number, above))]
        arcs = {"to": [(number, one) for one in words], "from": [(one, number) for one in words]}
        for direction, pairs in arcs.items():
            shares: dict[int, Tensor] = {}
            for place, (first, second) in enumerate(pairs):
                for query in pieces[first]:
                    zeros = torch.zeros(len(pairs), len(head.keys), dtype=torch.float64)
                    shares.setdefault(query, zeros)[place, pieces[second]] = 1 / len(pieces[first])
            case = {q: torch.cat([c[:1], c[:1] - c[1:]]) for q, c in shares.items()}
            seen = ((head.seen(query), case[query][0]) for query in pieces[pairs[0][0]])
            if any(keys is None or (share * keys).any() for keys, share in seen):
                found.setdefault(f"{relation} {direction} head", []).append(case)
    return found
