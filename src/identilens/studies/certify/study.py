"""What an outcome (a head's output, its layer's, the model's answer) fixes of each attention weight of a row."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.claims import Claim, ClaimRow, functionals_of, read_claims, row_sources
from identilens.errors import SettingError
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.reading import read_layer
from identilens.models.sequences import sides
from identilens.models.spelling import Spelling
from identilens.models.stream import read_stream, require_unembedding, token_of
from identilens.models.token_names import token_names
from identilens.runs.matrices import MatrixKey
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.certify.certificates import FOLDER, CertificateFile
from identilens.studies.certify.result import Certainty
from identilens.studies.certify.rows import SCHEMA, CertifiedRow, certified_rows
from identilens.studies.certify.settings import CertifySettings
from identilens.studies.head_views import head_name
from identilens.studies.heads import HeadStudy, PartsByText, Place
from identilens.studies.outcomes import answer_in_words, asked_answer, kept_outcome
from identilens.studies.settings import tolerances

_ROWS = 16
"""Rows in one part: what an interruption can cost."""

_SOURCES = 1_024
"""Positions whose sources are in memory."""


class CertifyStudy(HeadStudy[CertifySettings, Certainty]):
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
        self.parts = PartsByText(len(self.heads.items), self._parts_of)
        if not self.parts:
            raise SettingError("queries", "to be rows of the chosen heads", settings.queries)
        self._claims = read_claims(settings.claim, settings.pattern, settings.segment)
        self.leaves = "certificates are files" if settings.certificates else ""
        # What the heads of a layer share is made once.
        self._layer = lru_cache(1)(self._read_layer)
        self._source = lru_cache(_SOURCES)(self._read_source)
        self._answers: dict[int, tuple[Answer, str]] = {}
        self._tolerances = tolerances(settings.tolerance, settings.outcome, lens.dtype)
        self._moves = settings.outcome != "head" or any(one.size for one in self._tolerances)
        if settings.source:
            require_unembedding(lens)

    @cached_property
    def _model(self) -> str:
        """Name of the model without a path, which says nothing elsewhere, and the digest of its parameters."""
        lens = self.heads.lens
        return f"{Path(lens.name).name} ({lens.digest[:25]})"

    def _parts_of(self, text: int) -> list[list[tuple[Place, int]]]:
        """Return the rows of each part: a few of one layer."""
        parts = []
        for _, places in groupby(self.heads.places(text), key=lambda place: place.site):
            places = [*places]
            # Heads of a layer have the same queries, which may take a run of the model to know.
            queries = self.heads.requested(places[0], self.settings.queries)
            rows = [(place, query) for place in places for query in queries]
            parts += [rows[first : first + _ROWS] for first in range(0, len(rows), _ROWS)]
        return parts

    def sizes(self) -> Sequence[int]:
        """Return the rows of each part."""
        return [*map(len, self.parts)]

    def run(self, part: int) -> Output:
        """Return the certificates of some rows of a layer, all rows together."""
        settings, heads = self.settings, self.heads
        kept, claims, places = [], [], []
        first, _ = self.parts[part][0]
        item, layer = heads.items[first.text], self._layer(first.text, first.site)
        names, side = heads.tokens(layer[0], first.text), sides(first.site.kind, item.tokens)
        tokens = names[side.key]
        spelling = Spelling.of(item, side.key, tokens)
        for place, query in self.parts[part]:
            head = layer[place.head]
            head.refuse_sink()
            row = ClaimRow(head, query, tokens, place.text, spelling, self._moves)
            kept.append(
                kept_outcome(
                    settings.outcome,
                    head,
                    query,
                    lambda: layer,
                    lambda: self._answer(place.text, place.site, names)[0],  # noqa: B023
                )
            )
            claims.append(functionals_of(self._claims, row))
            if settings.source:
                claims[-1] |= row_sources(row, *self._source(place.text, query))
            answer = kept[-1].answer and self._answer(place.text, place.site, names)[1]
            at = {"query": query, "query_token": names[side.query][query]}
            places.append({**place.row, **at, "outcome": settings.outcome, "answer": answer})
        allowed = [[one.allowed(each) for each in self._tolerances] for one in kept]
        written = settings.certificates
        rows = certified_rows(kept, tokens, allowed, claims, certificates=written)
        tables: dict[str, list[Row]] = {"table": [], "rows": []}
        for number, row in enumerate(rows):
            which, level = divmod(number, len(self._tolerances))
            at = {**places[which], "tolerance": self._tolerances[level].name}
            if written:
                self._write(row, claims[which], at)
            for name, found in (("table", row.functionals), ("rows", [row.row])):
                tables[name] += [{**at, **one} for one in found]
        return Output(
            {
                name: pl.DataFrame(tables[name], schema=pl.Schema(columns))
                for name, columns in SCHEMA.items()
            }
        )

    def _read_source(self, text: int, query: int) -> tuple[Tensor, str]:
        """Return the direction that a logit reads at a query, and its name."""
        heads = self.heads
        return read_source(heads.lens, heads.items[text], query, self.settings.source)

    def _write(self, row: CertifiedRow, claims: Iterable[Claim], at: Row) -> None:
        """Write the certificates of a row's claims, and note their files."""
        kept = {name: at[name] for name in ("outcome", "tolerance")}
        head = at["text"], at["layer"], at["head"], at["kind"]
        place = MatrixKey(*head, f"query{at['query']}")
        where = f"{head_name(at)}, query {at['query']} ({at['query_token']!r}) of {self._model}"
        last = at["tolerance"].replace("%", "percent")
        functionals = row.functionals[-len(row.certificates) :]
        for number, claim in enumerate(claims):
            name = f"{FOLDER}/{place}.claim{number}.{last}.safetensors"
            words = {name: getattr(claim, name) for name in ("words", "subject", "sign", "bound")}
            file = CertificateFile(row.certificates[number], {**words, **kept, "where": where})  # pyright: ignore
            file.write(self.folder / name)  # pyright: ignore
            functionals[number]["certificate"] = name

    def _read_layer(self, text: int, site: Site) -> Sequence[Head]:
        """Return all heads of a layer, with the rows that are asked for."""
        lens, item = self.heads.lens, self.heads.items[text]
        asked = self.settings.queries
        rows = None if asked is None else self.heads.requested(Place(text, site, 0), asked)
        return [*read_layer(lens, item, lens.sites(item).index(site), rows).heads]

    def _answer(
        self, text: int, site: Site, tokens: Mapping[str, Sequence[str]]
    ) -> tuple[Answer, str]:
        """Return the model's answer to a text, and what it is in words; that to the current text is stored."""
        if text not in self._answers:
            lens, item = self.heads.lens, self.heads.items[text]
            answer = asked_answer(lens, item, self.settings, tokens, text)
            decoder = "decoder" in tokens
            own = tokens["decoder" if decoder else "encoder"]
            after = decoder or site.kind != "encoder"
            self._answers = {text: (answer, answer_in_words(answer, own, after=after))}
        return self._answers[text]


def read_source(
    lens: Lens, item: Item, query: int, requested: Sequence[str]
) -> tuple[Float[Tensor, " d_model"], str]:
    """Return the direction along which one token's logit, or the difference of two, is read at one position.

    With the scale of the final norm frozen; and its name: the token, or two.

    Raises:
        InputError: For words that are not one token.
        UnsupportedModelError: If the model's logits are no such sum.
    """
    stream = read_stream(lens, item, query)
    likely = int(stream.logits.argmax())
    tokens = [likely if one == "most likely" else token_of(lens, one) for one in requested]
    names = token_names(lens.tokenizer, tokens) if lens.tokenizer else map(str, tokens)
    name = " − ".join(map(repr, names))
    directions = [stream.direction(one)[0] for one in tokens]
    signs = torch.tensor([1.0, -1.0][: len(tokens)], dtype=torch.float64)
    return signs @ torch.stack(directions), name


certify = study_function(CertifyStudy, "certify")
