"""Shared parts of the reproductions of Brunner et al. 2020: texts, options, and published numbers beside ours."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from annotated_types import Ge
from cyclopts import Parameter

from identilens.errors import InputError
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.result import Result
from identilens.runs.settings import NOT_RECORDED, Settings
from identilens.runs.tables import markdown_table
from identilens.runs.texts import read_texts

Corpus = Literal["mrpc", "cola", "mnli", "ewt", "wiki"]
Rows = list[tuple[str, str, str, str]]
"""Rows of a comparison: figure, quantity, published, measured."""

FILES: dict[Corpus, tuple[str, tuple[str, ...]]] = {
    "mrpc": ("mrpc/dev.tsv.xz", ("#1 String", "#2 String")),
    "cola": ("cola/dev.tsv", ()),
    "mnli": ("mnli/dev_matched.tsv.xz", ("premise", "hypothesis")),
    "ewt": ("ud_ewt/en_ewt-ud-test.conllu.xz", ()),
    "wiki": ("wiki_en/segments_1000.jsonl.xz", ("par1", "par2")),
}
"""File of each corpus, and the columns of its texts."""


@dataclass(frozen=True, kw_only=True)
class BrunnerSettings(Settings):
    """The model and the number of texts; the paper's model is bert-base-uncased.

    Attributes:
        model: Hub id or local folder of a model, or a bundled one.
        data: Folder with the data sets, each in a folder of its own: mrpc, cola, mnli, ud_ewt, wiki_en.
        limit: Number of texts, from the first on. Default: as many as in the paper.
    """

    model: Annotated[str, Parameter(alias="-m")] = "bundled"
    data: Annotated[Path, NOT_RECORDED] = Path("data")
    limit: Annotated[int | None, Ge(1)] = None

    def texts(self, corpus: Corpus, most: int | None = None) -> Sequence[Any]:
        """Return the first texts of a corpus: ``limit`` of them, by default the ``most`` of the paper, or all.

        Raises:
            InputError: If its file cannot be read.
        """
        file, columns = FILES[corpus]
        limit = most if self.limit is None else self.limit
        if corpus == "cola":  # Its file has no header.
            return cola_sentences(self.data / file)[:limit]
        return read_texts(self.data / file, columns=columns, pairs=len(columns) == 2, limit=limit)


@dataclass(frozen=True)
class Figures:
    """Figures that one run of a study gives.

    Attributes:
        name: Name of the reproduction, such as ``brunner2020-figure1``.
        source: Numbers of the figures, such as "Figures 1 and 5".
        corpus: The texts.
        compare: Function that returns rows of (figure, quantity, published, measured).
        charts: Beginnings of the names of the charts.
        tables: Function that returns further tables by file name.
        most: Number of texts in the paper, the first of the corpus; None where it takes all.
        note: A sentence on how the data differ from the paper's.
    """

    name: str
    source: str
    corpus: Corpus
    compare: Callable[[Any], Rows]
    charts: tuple[str, ...]
    tables: Callable[[Any], Mapping[str, pl.DataFrame]]
    most: int | None = None
    note: str = ""


def figures(study: Callable[..., Result], options: type[Settings], settings_type: Any, one: Figures) -> Recipe:
    """Return the recipe of figures: the study runs on the corpus, in the folder ``run`` of the output."""

    def make(settings: Any, out: Path, **run: Any) -> Reproduction:
        lens, texts = load(settings.model), settings.texts(one.corpus, one.most)
        result = study(lens, texts, settings=options(**settings.values_of(options)), out=out / "run", **run)
        return reproduction(one, settings, lens, result, len(texts))

    make.__doc__ = f"Reproduce {one.source} of Brunner et al. 2020 with any model."
    return Recipe(settings_type, make, "texts")


def reproduction(
    one: Figures, settings: Settings, lens: Lens, result: Result, count: int, more: Mapping[str, str] | None = None
) -> Reproduction:
    """Return the reproduction: published numbers beside measured ones, tables, and the charts that are drawn.

    ``more`` are further facts for the record, by name.
    """
    comparison = pl.DataFrame(
        one.compare(result), schema=["figure", "quantity", "published (BERT-base)", "measured"], orient="row"
    )
    findings = (
        f"{markdown_table(comparison)}\n\nPublished numbers are those in the paper's text; it gives others only as "
        f"curves. {one.note}{' ' if one.note else ''}{result.summary().text}"
    )
    charts = {name: chart for name, chart in result.charts().items() if name.startswith(one.charts)}
    used = {**settings.recorded(), "texts": f"{count} of {one.corpus}", "parameters (sha256)": lens.digest, **(more or {})}
    tables = {"comparison": comparison, **one.tables(result)}
    return Reproduction(one.name, f"Brunner et al. 2020, {one.source}", used, tables, findings, charts)


def cola_sentences(file: Path) -> list[str]:
    """Return the sentences of CoLA's own file format: source, label, star, sentence.

    Raises:
        InputError: If the file cannot be read.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}. Name the folder of the data sets by --data."
        ) from error
    return [line.split("\t")[3] for line in lines if line]


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share in per cent."""
    return "" if value is None else f"{100 * value:.{digits}f} %"
