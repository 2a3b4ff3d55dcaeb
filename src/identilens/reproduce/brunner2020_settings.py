"""Brunner et al. 2020: the published numbers, and how a study gives a figure."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.reproduce.inputs import Corpus, corpus_texts
from identilens.reproduce.record import Reproduction, chosen_charts
from identilens.runs.result import Result
from identilens.runs.settings import Settings
from identilens.runs.tables import Tables, markdown_table

Rows = list[tuple[str, ...]]
"""Rows of a comparison: figure, quantity, published, measured."""
PASSAGE = (
    "research into military brats has consistently shown them to be better behaved than their civilian counterparts.",
    "hypothesizes as to why brats are better behaved: firstly, military parents have a lower threshold for "
    "misbehavior in their children; secondly, the mobility of teenagers might make them less likely to attract "
    "attention to themselves, as many want to fit in and are less secure with their surroundings; and thirdly, "
    "normative constraints are greater, with brats knowing that their behavior is under scrutiny and can affect "
    "the military member's career. teenage years are typically a period when people establish independence by "
    "taking some risks away from their",
)
"""The passage of Figure 6."""

# What the paper says. Of other quantities it shows curves.
SEPARATORS = {
    "raw": "“the [SEP] tokens attract more in middle layers”",
    "effective": "“the peak of [SEP] token observed by raw attention has disappeared”",
}
MAPS = {
    "raw": "mostly structural or near the diagonal",
    "effective": "structural weights vanish",
    "null": "carries the structural weights",
}
TUNED = {"l2": "a remarkable decrease", "cosine": "affected much less"}
SHARES = {
    "distance": "l2",
    "share": [0.5, 0.8, 0.9, 1.0],
    "published": ["74 %", "80 %", "81 %", "82 %"],
}
"""Rates of an MLP on layer 11 by the share of the training data (B.2, with L2 as in its Figure 7)."""
OWN = {
    "name": ["first", "middle", "last"],
    "own": ["30.6 %", "14.4 %", "10.7 %"],
    "others": ["0", "18 %", "30 %"],
}
"""Median own contribution on MRPC, and share of tokens that are not their own largest contributor, by layer."""
SPEECH = {"[CLS]": "over 40 %", "NN": "less than 35 %", "DT": "less than 35 %"}
"""Median own contribution of some parts of speech in the first layer (Fig. 26)."""


def reproduction(
    rows: Rows,
    result: Result,
    used: Mapping[str, Any],
    tables: Tables,
    charts: Mapping[str, AnyChart],
) -> Reproduction:
    """Return published numbers beside measured ones, tables, and charts."""
    comparison = pl.DataFrame(
        rows,
        schema=["figure", "quantity", "published (BERT-base)", "measured"],
        orient="row",
    )
    findings = (
        f"{markdown_table(comparison)}\n\nPublished numbers are those in the paper's text; it gives others only as "
        f"curves. {result.summary().text}"
    )
    return Reproduction(used, {"comparison": comparison, **tables}, findings, charts)


def record(settings: Settings, lens: Lens, texts: str) -> dict[str, Any]:
    """Return the settings, the texts and the digest of the model."""
    return {**settings.recorded(), "texts": texts, "parameters (digest)": lens.digest}


def figure(
    study: Callable[..., Result],
    tables: Callable[[Any], Tables],
    corpus: Corpus,
    compare: Callable[[Any], Rows],
    *charts: str,
    most: int | None = None,
) -> Callable[..., Reproduction]:
    """Return what makes figures of one run of a study on a corpus; the run is in the folder ``run`` of the output.

    Args:
        study: The study's function.
        tables: Returns further tables by file name.
        corpus: The texts.
        compare: Returns the rows of the comparison.
        *charts: Beginnings of the names of the charts.
        most: Number of texts in the paper, the first of the corpus; None where it takes all.
    """

    def make(settings: Any, out: Path, **run: Any) -> Reproduction:
        lens, texts = load(settings.model), corpus_texts(settings, corpus, most)
        result = study(lens, texts, settings=settings, out=out / "run", **run)
        return reproduction(
            compare(result),
            result,
            record(settings, lens, f"{len(texts)} of {corpus}"),
            tables(result),
            chosen_charts(result, *charts),
        )

    return make
