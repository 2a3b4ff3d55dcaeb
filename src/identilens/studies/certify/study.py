"""What an outcome (a head's output, its layer's, the model's answer) fixes of each attention weight of a row."""

from collections.abc import Collection, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.labels import shortened
from identilens.claims import Claim, ClaimRow, functionals_of, read_claims, row_sources
from identilens.errors import SettingError
from identilens.models.heads import CapturedLayer
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.sequences import Kind, sides
from identilens.models.spelling import Spelling
from identilens.models.stream import read_stream, require_unembedding, token_of
from identilens.models.token_names import token_names, unmarked
from identilens.runs.matrices import MatrixKey
from identilens.runs.study import Output, study_function
from identilens.runs.tables import HEAD, Row
from identilens.studies.certify.certificates import FOLDER, CertificateFile
from identilens.studies.certify.result import Certainty
from identilens.studies.certify.rows import SCHEMA, certified_rows
from identilens.studies.certify.settings import CertifySettings
from identilens.studies.heads import Place, TextStudy, filled
from identilens.studies.outcomes import asked_answer, kept_outcomes
from identilens.studies.settings import UNITS, tolerances

_ROWS = 16
"""Rows in one part: what an interruption can cost."""

_PLACE = (
    "text {text}, {kind} layer {layer}, head {head}, query {query} ({query_token!r}) of {model}"
)
_SOURCES = 1_024
"""Positions whose sources are in memory."""

_NAMED = 100
"""Characters in which the positions of an answer are named."""


class CertifyStudy(TextStudy[CertifySettings, Certainty]):
    """Say for each attention weight whether the output determines it, and how much of the output its key brings.

    For each row: a proven interval of each weight over all distributions with the same output; each key's share of
    what the keys add; its Contribution Weight; the change when it is removed; a verdict in plain words; the key that is
    first in every alternative. At most two linear programs for each weight. Words and thresholds: docs/certify.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, a head or query that is not there, or attention with
            sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an interval cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.certify(lens, idl.examples()[0], layers=3, heads=9, queries=10, tolerance=0)
        >>> result
        Certainty: With the head's output the same, exactly, at least 80 % of the attention of 'once' ...
        >>> result.table["verdict"].value_counts(sort=True)
        shape: (5, 2)
        ┌─────────────────────────────┬───────┐
        │ verdict                     ┆ count │
        │ ---                         ┆ ---   │
        │ str                         ┆ u32   │
        ╞═════════════════════════════╪═══════╡
        │ negligible                  ┆ 17    │
        │ not determined, small share ┆ 15    │
        │ determined, large share     ┆ 5     │
        │ not determined, large share ┆ 4     │
        │ determined, small share     ┆ 1     │
        └─────────────────────────────┴───────┘
    """

    name = "certify"
    unit = "rows"
    settings_type = CertifySettings
    result_type = Certainty
    parts: Sequence[Sequence[tuple[Place, int]]]

    def __init__(self, lens: Lens, texts: Any, settings: CertifySettings) -> None:
        super().__init__(lens, texts, settings)
        self.parts = [part for text in range(len(self.items)) for part in self._parts_of(text)]
        if not self.parts:
            raise SettingError("queries", "to be rows of the chosen heads", settings.queries)
        self._claims = read_claims(settings.claim, settings.pattern, settings.segment)
        self.leaves = "certificates are files" if settings.certificates else ""
        # What the heads of a layer share is made once.
        self._layer = lru_cache(1)(self._read_layer)
        self._source = lru_cache(_SOURCES)(self._read_source)
        self._answer = lru_cache(1)(self._read_answer)
        self._tolerances = tolerances(settings.tolerance, settings.outcome, lens.dtype)
        self._moves = settings.outcome != "head" or any(
            tolerance.size for tolerance in self._tolerances
        )
        if settings.source:
            require_unembedding(lens)

    @cached_property
    def _model(self) -> str:
        """Name of the model without a path, which says nothing elsewhere, and the digest of its parameters."""
        return f"{Path(self.lens.name).name} ({self.lens.digest[:25]})"

    def _parts_of(self, text: int) -> list[list[tuple[Place, int]]]:
        """Return the rows of each part: a few of one layer."""
        parts = []
        for _, places in groupby(self.places(text), key=lambda slot: slot.site):
            places = [*places]
            # Heads of a layer have the same queries, which may take a run of the model to know.
            queries = self.requested(self.items[text], places[0], self.settings.queries)
            rows = [*product(places, queries)]
            parts += [rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS)]
        return parts

    def sizes(self) -> Sequence[int]:
        """Return the rows of each part."""
        return [*map(len, self.parts)]

    def run(self, part: int) -> Output:
        """Return the certificates of some rows of a layer, all rows together."""
        settings = self.settings
        first, _ = self.parts[part][0]
        text, site = first.text, first.site
        item, captured = self.items[text], self._layer(text, site)
        # What a head computes of all its rows is not kept for the next part.
        layer = [*captured.heads]
        names, side = self.tokens(item, layer[0]), sides(site.kind, item.tokens)
        tokens = names[side.key]
        spelling = Spelling.of(item, side.key, tokens)
        answer, words = self._answer(text, site.kind) if settings.outcome in UNITS else (None, None)
        pairs = [(layer[slot.head], query) for slot, query in self.parts[part]]
        claims = []
        for head, query in pairs:
            head.refuse_sink()
            row = ClaimRow(head, query, tokens, text, spelling, self._moves)
            claims.append(functionals_of(self._claims, row))
            if settings.source:
                claims[-1] |= row_sources(row, *self._source(text, query))
        kept = kept_outcomes(settings.outcome, pairs, layer, answer)
        allowed = [[row.allowed(each) for each in self._tolerances] for row in kept]
        written = settings.certificates
        rows = iter(certified_rows(kept, tokens, allowed, claims, certificates=written))
        tables: dict[str, list[Row]] = {name: [] for name in SCHEMA}
        for number, tolerance in product(range(len(pairs)), self._tolerances):
            slot, query = self.parts[part][number]
            labels = {
                **slot.row,
                "query": query,
                "query_token": names[side.query][query],
                "tolerance": tolerance.name,
                "outcome": settings.outcome,
                "answer": words,
            }
            certified = next(rows)
            if written:
                self._write(certified["table"], claims[number], labels)
            for name, proven in certified.items():
                tables[name] += [{**labels, **row} for row in proven]
        return Output(filled(SCHEMA, {name: [table] for name, table in tables.items()}))

    def _write(self, rows: Sequence[Row], claims: Collection[Claim], labels: Row) -> None:
        """Write the certificates of a row's claims, and note their files."""
        key = MatrixKey(**{name: labels[name] for name in HEAD}, name=f"query{labels['query']}")
        kept = {name: labels[name] for name in ("outcome", "tolerance")}
        kept["where"] = _PLACE.format(**labels, model=self._model)
        last = labels["tolerance"].replace("%", "percent")
        for number, (claim, row) in enumerate(zip(claims, rows[-len(claims) :], strict=False)):
            name = f"{FOLDER}/{key}.claim{number}.{last}.safetensors"
            words = {name: getattr(claim, name) for name in ("words", "subject", "sign", "bound")}
            CertificateFile(row["certificate"], words | kept).write(self.folder / name)  # pyright: ignore
            row["certificate"] = name

    def _read_source(self, text: int, query: int) -> tuple[Float[Tensor, " d_model"], str]:
        """Return the direction along which one token's logit, or the difference of two, is read at one position.

        With the scale of the final norm frozen; and its name: the token, or two.

        Raises:
            InputError: For words that are not one token.
            UnsupportedModelError: If the model's logits are no such sum.
        """
        lens, asked = self.lens, self.settings.source
        stream = read_stream(lens, self.items[text], query)
        likely = int(stream.logits.argmax())
        tokens = [likely if words == "most likely" else token_of(lens, words) for words in asked]
        names = token_names(lens.tokenizer, tokens) if lens.tokenizer else map(str, tokens)
        directions = [stream.direction(token)[0] for token in tokens]
        signs = torch.tensor([1.0, -1.0][: len(tokens)], dtype=torch.float64)
        return signs @ torch.stack(directions), " − ".join(map(repr, names))

    def _read_layer(self, text: int, site: Site) -> CapturedLayer:
        """Return a layer on a text, with the rows that are asked for."""
        item, asked = self.items[text], self.settings.queries
        rows = None if asked is None else self.requested(item, Place(text, site, 0), asked)
        return self.lens.layer(item, site.layer, site.kind, rows)

    def _read_answer(self, text: int, kind: Kind) -> tuple[Answer, str]:
        """Return the model's answer to a text, and what it is in words where heads of this kind are looked at."""
        item = self.items[text]
        site = next(site for site, _ in self.chosen if site.kind == kind)
        names = self.tokens(item, self._layer(text, site).head(0))
        answer = asked_answer(self.lens, item, self.settings, names, text)
        return answer, answer_in_words(
            answer, names["decoder" if "decoder" in names else "encoder"]
        )


def answer_in_words(answer: Answer, names: Sequence[str]) -> str:
    """Return which prediction, or which final hidden states, an answer is."""
    positions, what = answer.positions or (), "the model's final hidden states at"
    if answer.outcome == "prediction":
        logits = answer.text.output.get("logits")
        if logits is not None and logits.ndim < 3:
            return "the model's prediction of the class"
        what = "the model's prediction from"
    if len(positions) == len(names) > 1:
        return f"{what} all {len(positions):,} positions"
    named = (f"{unmarked(names[index])!r} (position {index})" for index in positions)
    return f"{what} {shortened(', '.join(named), _NAMED)}"


certify = study_function(CertifyStudy, "certify")
