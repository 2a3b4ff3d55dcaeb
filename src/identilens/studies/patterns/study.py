"""How much attention each head has on published patterns, and how much of that every alternative has."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.claims import Claim, ClaimRow, functionals_of, pattern
from identilens.errors import InputError
from identilens.measures.attention.detectors import PATTERNS
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.sequences import sides
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Tables
from identilens.studies.certify.rows import Functionals, proven_rows
from identilens.studies.drawn import drawn_rows
from identilens.studies.heads import TextStudy, shaped
from identilens.studies.items import Items
from identilens.studies.patterns.result import PatternScores
from identilens.studies.patterns.settings import PatternSettings

_SEQUENCES = 4
"""Random sequences that are added."""


class PatternStudy(TextStudy[PatternSettings, PatternScores]):
    """Score every head on published patterns of attention, and bound the scores over all alternatives.

    The score is the mean attention to the keys that a pattern names (the previous token, tokens that followed the same
    token before, and others), over rows drawn by the seed. Rows choose independently, so the
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
        >>> found = idl.patterns(
        ...     lens, idl.examples()[0], pattern="previous,separator", layers=3, heads=(0, 9), rows=2, tolerance=0
        ... )
        >>> found.by_head().select("pattern", "name", "rows").rows()
        [('previous', 'L3H0', 2), ('separator', 'L3H0', 2), ('previous', 'L3H9', 2), ('separator', 'L3H9', 2)]
    """

    name = "patterns"
    settings_type = PatternSettings
    result_type = PatternScores

    def __init__(self, lens: Lens, texts: Any, settings: PatternSettings) -> None:
        super().__init__(lens, texts, settings)
        self.entered = len(self.items)
        self.patterns = [pattern(name) for name in settings.pattern or PATTERNS]
        if settings.repeated:
            entries = [*self.items.entries, *lens.read(self._repeated())]
            self.items = self.parts = Items(lens, entries, settings.max_length)
        places = ((site.layer, head, site.kind) for site, head in self.chosen)
        self._scored = {address for address in places if "cross" not in address}
        self.tolerances = settings.read_tolerances(lens.dtype)

    def _repeated(self) -> list[list[int]]:
        """Return random sequences, each twice in a row, that begin as the first text does."""
        settings, special = self.settings, getattr(self.lens.tokenizer, "all_special_ids", [])
        size = self.lens.model.config.get_text_config().vocab_size
        usual = torch.tensor([token for token in range(size) if token not in special])
        generator = torch.Generator().manual_seed(settings.seed)
        shape = _SEQUENCES, settings.repeated
        drawn = usual[torch.randint(len(usual), shape, generator=generator)].tolist()
        first = int(self.items[0].tensors["input_ids"][0])
        return [[first, *row, *row] for row in drawn]

    def run(self, part: int) -> Output:
        """Return the scores of all heads on one text."""
        item, rows = self.items[part], []
        [text] = self.lens.capture(item, weights=True)
        corpus = "texts" if part < self.entered else "repeated"
        for number, layer in enumerate(text.layers):
            heads = [head for head in layer.heads if head.address in self._scored]
            for head in heads:
                head.refuse_sink()
            if heads and (drawn := self._drawn(part, item, heads[0])):
                rows.append(self._scores(heads, drawn))
            self.tell(f"text {part}, layer {number}")
        table = shaped(PatternScores.schema["table"], rows)
        named = {"text": pl.lit(part, pl.Int64), "corpus": pl.lit(corpus)}
        return Output({"table": table.with_columns(**named)})

    def finish(self, tables: Tables) -> Output:
        """Check that there is something to score."""
        if tables["table"].is_empty():
            raise InputError(
                "no row of the texts has a key of the patterns and other keys besides. Choose other texts or another "
                "pattern."
            )
        return Output(tables)

    def _drawn(self, part: int, item: Item, head: Head) -> Mapping[int, Functionals]:
        """Return the patterns of each row that is drawn for one; heads of a layer have the same."""
        names = self.tokens(item, head)[sides(head.kind, item.tokens).query]
        seeds = self.settings.seed, part, head.layer, head.kind
        rows = [
            functionals_of(self.patterns, ClaimRow(head, query, names, part))
            for query in range(len(names))
        ]
        drawn: dict[int, dict[Claim, Tensor]] = {}
        for claim in self.patterns:
            queries = [query for query, held in enumerate(rows) if claim in held]
            for number in drawn_rows(*seeds, len(queries), self.settings.rows):
                query = queries[number]
                drawn.setdefault(query, {})[claim] = rows[query][claim]
        return drawn

    def _scores(self, heads: Sequence[Head], drawn: Mapping[int, Functionals]) -> pl.DataFrame:
        """Return the score of heads on each pattern, and its ends: the means over the rows of the pattern.

        Rows change independently of each other, so that ends of means over rows are means of ends.
        """
        pairs = [*product(heads, drawn)]
        scored = proven_rows(pairs, [drawn[query] for _, query in pairs], self.tolerances)
        of = ["layer", "head", "kind", "tolerance", pl.col("functional").alias("pattern")]
        means = scored.group_by(of, maintain_order=True).agg(
            pl.col("lo", "hi").mean(), rows=pl.len(), score=pl.col("value").mean()
        )
        order = pl.Enum([tolerance.name for tolerance in self.tolerances])
        return means.sort("head", pl.col("tolerance").cast(order), maintain_order=True)


patterns = study_function(PatternStudy, "patterns")
