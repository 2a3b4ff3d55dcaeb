"""What an outcome (a head's output, its layer's, the model's answer) fixes of each attention weight of a row."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import torch
from annotated_types import Ge, Lt
from torch import Tensor

from identilens import claims as functionals
from identilens.claims import Claim, ClaimRow, row_sources
from identilens.errors import InputError, SettingError
from identilens.measures.attention.intervals import PIN_TOLERANCE
from identilens.models.heads import Head
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.reading import read_layer
from identilens.models.sequences import Kind, sides
from identilens.models.spelling import Spelling
from identilens.models.stream import require_unembedding
from identilens.models.substitution import Rows
from identilens.runs.folder import RunFolder
from identilens.runs.matrices import MatrixKey
from identilens.runs.settings import LIST, WORDED, Positions, Switch, Tolerances
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.certify.certificates import FOLDER, MOST, CertificateFile, said_of
from identilens.studies.certify.result import Certainty
from identilens.studies.certify.rows import CertifiedRow, certified_row, frames_of
from identilens.studies.certify.sources import Source, read_source
from identilens.studies.heads import Place, RowSettings, RowStudy
from identilens.studies.outcomes import (
    Outcome,
    answer_in_words,
    asked_answer,
    kept_outcome,
    tolerances,
)

_SOURCES = 1_024
"""Positions whose sources are in memory."""


@dataclass(frozen=True, kw_only=True)
class CertifySettings(RowSettings):
    """Which rows of which heads, and what is certified of them.

    Attributes:
        outcome: What must stay the same: the output of the head; that of its layer, all heads of a row together; the
            model's final hidden states; or its prediction. The last two are certified to first order.
        tolerance: How much it may change and count as the same: 0, a share (0.01, 1%) or a rounding (model, bfloat16,
            float16, float32); of states and prediction a share of the row's effect, or a number with its unit
            (0.01change, 0.001nats). Default: 0 and bfloat16 for the head, bfloat16 and 1% for its layer, 1% otherwise.
        answer: Position or token of the predictions, or states, that count; last for the prediction and all states by
            default.
        pin_tolerance: Largest width of an interval whose weight counts as pinned.
        claim: Words whose attention is certified ("the storm"), or a claim on it ("the storm > 0.3", "storm > ferry"):
            is it true in every alternative? Every run of tokens that spells the words, and that the row sees to its
            end, counts. In Python also what `identilens.claims` makes.
        pattern: Published patterns whose attention is certified as a claim: previous, next, current, first, duplicate,
            induction, separator, punctuation.
        segment: A part of the text whose attention is certified as a claim, as name=words, or as name=start:end by
            characters. Of two or three segments also how much more attention one gets than another.
        source: The token whose logit is split by source: what each key of a row adds to it is certified as a claim. A
            text such as " river", a number, or "most likely"; of two, the difference of their logits. In Python also a
            direction of the residual stream.
        certificates: Write a file for each claim, row and tolerance, from which anyone can check the ends.
        order: Certify also which keys have the same order in every alternative; takes about twice as long.
    """

    outcome: Outcome = "head"
    tolerance: Tolerances | None = None
    answer: Positions | None = None
    pin_tolerance: Annotated[float, Ge(0), Lt(1)] = PIN_TOLERANCE
    claim: Annotated[tuple[str | Claim, ...], WORDED] = ()
    pattern: Annotated[tuple[str, ...], LIST] = ()
    segment: Annotated[tuple[str | Claim, ...], WORDED] = ()
    source: Annotated[tuple[str | Tensor, ...], WORDED] = ()
    certificates: Switch = False
    order: bool = False

    def check(self) -> None:
        """Check that tolerances can be read, and belong to the outcome."""
        read = tolerances(self.tolerance, self.outcome, "float32")
        if self.outcome == "layer" and any(one.size == 0 for one in read):
            raise SettingError(
                "tolerance",
                "above 0 for the output of a layer (its exact alternatives are those of the outcome head, if the "
                "stacked output projections have full rank: see stacked_rank of an audit)",
                self.tolerance,
            )
        if self.certificates and not (self.claims or self.source):
            words = "with a claim, a pattern, a segment or a source"
            raise SettingError("certificates", words, True)
        tensors = [one for one in self.source if isinstance(one, Tensor)]
        finite = all(one.ndim == 1 and bool(one.isfinite().all()) for one in tensors)
        if len(self.source) > 2 or (tensors and len(self.source) > 1) or not finite:
            words = "as one token, two, or one direction of d_model finite numbers"
            raise SettingError("source", words, self.source)
        if self.answer is not None and self.outcome in ("head", "layer"):
            raise SettingError("answer", "with the outcome states or prediction only", self.answer)

    @property
    def claims(self) -> list[Claim]:
        """All claims.

        Raises:
            SettingError: For words that are no claim, or an unknown pattern.
        """
        read = [one if isinstance(one, Claim) else Claim.read(one) for one in self.claim]
        segments = [
            one if isinstance(one, Claim) else functionals.segment(*functionals.read_segment(one))
            for one in self.segment
        ]
        patterns = map(functionals.pattern, self.pattern)
        return [*read, *patterns, *segments, *functionals.compared(segments, segments)]

    def recorded(self) -> dict[str, Any]:
        """Return the settings that change the numbers; claims that were made in Python in words."""
        claims, segments = (
            [one.recorded if isinstance(one, Claim) else one for one in made]
            for made in (self.claim, self.segment)
        )
        source = [
            functionals.source(one).digest if isinstance(one, Tensor) else one
            for one in self.source
        ]
        return {**super().recorded(), "claim": claims, "segment": segments, "source": source}


class CertifyStudy(RowStudy[CertifySettings, Certainty]):
    """Say for each attention weight whether the output determines it, and how much of the output its key brings.

    For each row: a proven interval of each weight over all distributions with the same output; each key's share of
    what the keys add; its Contribution Weight; the change when it is removed; a verdict in plain words; the key that is
    first in every alternative; with ``order``, all pairs of keys whose order is the same in every alternative. At most
    two linear programs for each weight. Words and thresholds: docs/certify.md.

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
    settings_type = CertifySettings
    result_type = Certainty

    def __init__(self, lens: Lens, texts: Any, settings: CertifySettings) -> None:
        super().__init__(lens, texts, settings)
        # What the heads of a layer share is made once.
        self._layer = lru_cache(1)(self._read_layer)
        self._source = lru_cache(_SOURCES)(self._read_source)
        self._answers: dict[int, tuple[Answer, str]] = {}
        self._tolerances = tolerances(settings.tolerance, settings.outcome, lens.dtype)
        self._moves = settings.outcome != "head" or any(one.size for one in self._tolerances)
        if settings.source:
            require_unembedding(lens)
        each = len(settings.claims) + bool(settings.source) * max(self._items.lengths)
        files = each * len(self._tolerances) * sum(self.sizes()) * settings.certificates
        if files > MOST:
            raise SettingError(
                "certificates", f"with at most {MOST:,} claims, rows and tolerances together", True
            )
        if settings.claims:
            self._look_for_claims()

    def _look_for_claims(self) -> None:
        """Check that each text with tokens has what the claims name, before anything is computed."""
        kinds: set[Kind] = {site.kind for site, _ in self.heads.chosen}
        for text, item in enumerate(self.heads.items):
            for sequence in {sides(kind, item.tokens).key for kind in kinds} & {*item.tokens}:
                spelling = Spelling.of(item, sequence, item.tokens[sequence])
                for claim in self.settings.claims:
                    claim.check(spelling, text)

    def begin(self, folder: RunFolder | None) -> None:
        """Prepare for the first part; certificates are files."""
        if folder is None and self.settings.certificates:
            raise InputError("certificates are files: pass out=... to the run.")
        super().begin(folder)
        if self.settings.certificates:
            # Elsewhere a path says nothing, and the parameters tell which model it was.
            lens = self.heads.lens
            name = Path(lens.name).name if Path(lens.name).is_dir() else lens.name
            self._model = f"{name} ({lens.digest[:25]})"

    def output(self, place: Place, head: Head, queries: Sequence[int]) -> Output:
        """Return the certificates of some rows of a head."""
        return Output(frames_of(one for query in queries for one in self._row(place, head, query)))

    def _row(self, place: Place, head: Head, query: int) -> Iterator[dict[str, list[Row]]]:
        """Yield the rows of the tables for each tolerance."""
        settings, item = self.settings, self.heads.items[place.text]
        names, side = self.heads.tokens(head, place.text), sides(head.kind, item.tokens)
        tokens = names[side.key]
        kept = kept_outcome(
            settings.outcome,
            head,
            query,
            lambda: self._layer(place.text, place.site, head.rows and (*head.rows,)),
            lambda: self._answer(place, names)[0],
        )
        at = {**place.row, "query": query, "query_token": names[side.query][query]}
        spelling = Spelling.of(item, side.key, tokens)
        row = ClaimRow(head, query, tokens, place.text, spelling, self._moves)
        counted = ((one, one.coefficients(row)) for one in settings.claims)
        claims, added = {one: each for one, each in counted if each is not None}, None
        if settings.source:
            source = self._source(place.text, query)
            sources = row_sources(row, source.direction, source.name)
            claims |= sources
            added = torch.stack([*sources.values()]).sum(0)
            if (place.site, place.head) == self.heads.chosen[0]:
                told = {name: at[name] for name in ("text", "query", "query_token")}
                yield {"parts": [{**told, "source": source.name, **one} for one in source.parts]}
        found, radii = {}, None
        # Radii are found for the smallest change: what is not determined there is so for no larger one.
        for tolerance in sorted(self._tolerances, key=kept.allowed):
            found[tolerance] = certified_row(
                kept,
                tokens,
                kept.allowed(tolerance),
                claims,
                radii=radii,
                pin_tolerance=settings.pin_tolerance,
                order=settings.order,
                added=added,
                certificates=settings.certificates,
            )
            radii = found[tolerance].radii
        for tolerance in self._tolerances:
            put = Rows([query], found[tolerance].farthest[None])
            measured = kept.answer and kept.answer.with_rows(head, put)
            said = kept.answer and self._answer(place, names)[1]
            also = {"outcome": settings.outcome, "answer": said, "measured": measured}
            where = {**at, "tolerance": tolerance.name}
            if settings.certificates:
                self._write(found[tolerance], claims, where)
            yield found[tolerance].tables(where, also)

    def _read_source(self, text: int, query: int) -> Source:
        """Return what a logit is the sum of at a query."""
        heads = self.heads
        return read_source(heads.lens, heads.items[text], query, self.settings.source)

    def _write(self, row: CertifiedRow, claims: Iterable[Claim], at: Row) -> None:
        """Write the certificates of a row's claims, and note their files."""
        where = (
            f"text {at['text']}, {at['kind']} layer {at['layer']}, head {at['head']}, query {at['query']} "
            f"({at['query_token']!r}) of {self._model}"
        )
        place = MatrixKey(at["text"], at["layer"], at["head"], at["kind"], f"query{at['query']}")
        last = at["tolerance"].replace("%", "percent")
        for number, (claim, certificate) in enumerate(zip(claims, row.certificates, strict=True)):
            name = f"{FOLDER}/{place}.claim{number}.{last}.safetensors"
            said = said_of(claim, self.settings.outcome, at["tolerance"], where)
            CertificateFile(certificate, said).write(self.folder / name)  # pyright: ignore
            row.functionals[number - len(row.certificates)]["certificate"] = name

    def _read_layer(self, text: int, site: Site, rows: tuple[int, ...] | None) -> list[Head]:
        """Return all heads of a layer."""
        lens, item = self.heads.lens, self.heads.items[text]
        return list(read_layer(lens, item, lens.sites(item).index(site), rows).heads)

    def _answer(self, place: Place, tokens: Mapping[str, Sequence[str]]) -> tuple[Answer, str]:
        """Return the model's answer to a text, and what it is in words; that to the current text is stored."""
        if place.text not in self._answers:
            lens, item = self.heads.lens, self.heads.items[place.text]
            answer = asked_answer(lens, item, self.settings, tokens, place.text)
            decoder = "decoder" in tokens
            own = tokens["decoder" if decoder else "encoder"]
            after = decoder or place.site.kind != "encoder"
            self._answers = {place.text: (answer, answer_in_words(answer, own, after=after))}
        return self._answers[place.text]


certify = study_function(CertifyStudy, "certify")
