"""A mixing analysis as one self-contained HTML file."""

from math import isfinite
from pathlib import Path
from typing import Any

import polars as pl

from identilens.report.labels import visible_text
from identilens.report.mixing_series import MixingSeries, finding, locate, mixing_series
from identilens.report.mixing_texts import ShownText, shown_texts
from identilens.report.page import Page, Section, write_page
from identilens.results import Mixing

TEXT_BUDGET = 4_000_000
"""Characters of a report that may be spent on single texts; the rest of the file takes about 5 million."""

_SCRIPTS = (
    "mixing/lines.js",
    "mixing/own.js",
    "mixing/neighbours.js",
    "mixing/class_token.js",
    "mixing/token.js",
    "mixing/speech.js",
    "mixing/rollout.js",
)


def write_mixing_report(
    mixing: Mixing, path: str | Path, *, track: str | None = None, text_budget: int = TEXT_BUDGET
) -> Path:
    """Write the report of a mixing analysis as one HTML file without outside requests, and return its path.

    Args:
        mixing: The result.
        path: The file to write; missing folders are made.
        track: A token whose context through the layers the page opens on.
        text_budget: Characters to spend on the contributions of single texts. Texts that do not fit are left out of
            the figure for single tokens, and the page says so; all other figures are over all texts.

    Raises:
        InputError: If no text holds ``track``, naming tokens that occur.
        OutputFolderError: If the file cannot be written.
    """
    opening = (0, None) if track is None else locate(mixing, track)
    series = mixing_series(mixing)
    shown = shown_texts(mixing, text_budget, opening[0])
    name = str(mixing.provenance["model"].get("name"))
    texts = mixing.provenance["texts"]["count"]
    page = Page(
        title="Mixing",
        subject=f"{name} on {texts} {'text' if texts == 1 else 'texts'}",
        finding=finding(mixing, series),
        numbers=_numbers(mixing, series),
        record=mixing.provenance,
        sections=_sections(mixing, series, shown),
        data={
            "own": _by_kind(series.own, series.kinds),
            "neighbours": _by_kind(series.neighbours, series.kinds),
            "positions": _by_kind(series.positions, series.kinds),
            "class_context": [
                {"token": visible_text(one.token), "centre": visible_text(one.centre), "rows": _columns(one.frame)}
                for one in series.class_context
            ],
            "speech": None if series.speech is None else _by_kind(_readable(series.speech), series.kinds),
            "own_medians": _by_kind(series.own_medians, series.kinds),
            "correlation": _by_kind(series.correlation, series.kinds),
            "texts": [one.facts() for one in shown],
            "opening": {"text": opening[0], "position": opening[1]},
        },
        blobs={f"mixing-text-{index}": one.encoded for index, one in enumerate(shown)},
        scripts=_SCRIPTS,
    )
    return write_page(page, path)


def _numbers(mixing: Mixing, series: MixingSeries) -> list[tuple[str, str]]:
    first, last = (series.own.filter(pl.col("kind") == series.kinds[0]).row(at, named=True) for at in (0, -1))
    pairs = mixing.table.filter(pl.col("layer") == last["layer"]).height
    return [
        (f"{100 * first['median']:.0f} %", f"of a hidden state is its own token at layer {first['layer']} (median)"),
        (f"{100 * last['median']:.0f} %", f"of it still is at layer {last['layer']} (median)"),
        (
            f"{100 * last['not_largest']:.0f} %",
            f"of tokens are not their own largest contributor at layer {last['layer']}",
        ),
        (f"{pairs:,}", "pairs of hidden and input token in every layer"),
    ]


def _sections(mixing: Mixing, series: MixingSeries, shown: list[ShownText]) -> list[Section]:
    switch = {"kinds": series.kinds, "kind_label": "Kind of hidden states"}
    texts = mixing.provenance["texts"]["count"]
    context = {"shown": len({one.text for one in shown}), "texts": texts}
    return [
        Section("own", "How much of a token is still itself", "mixing/own.html", switch | {"rows": _own_rows(series)}),
        Section("neighbours", "Where context comes from", "mixing/neighbours.html", switch),
        Section(
            "class-token",
            "The class token",
            "mixing/class_token.html",
            {"centres": [visible_text(one.centre) for one in series.class_context]},
        ),
        Section("token", "One token through the layers", "mixing/token.html", context),
        Section("speech", "Parts of speech", "mixing/speech.html", switch | {"any": series.speech is not None}),
        Section(
            "rollout",
            "What attention alone would have said",
            "mixing/rollout.html",
            switch | {"any": len(series.correlation) > 0, "rows": _rollout_rows(series)},
        ),
        Section("reading", "How to read this report", "mixing/reading.html"),
    ]


def _own_rows(series: MixingSeries) -> list[dict[str, str]]:
    return [
        {name: f"{value:.3f}" if isinstance(value, float) else f"{value}" for name, value in row.items()}
        for row in series.own.iter_rows(named=True)
    ]


def _rollout_rows(series: MixingSeries) -> list[dict[str, str]]:
    return [
        {
            name: "undefined" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value}"
            for name, value in row.items()
        }
        for row in series.correlation.iter_rows(named=True)
    ]


def _readable(speech: pl.DataFrame) -> pl.DataFrame:
    names = {tag: visible_text(tag) for tag in speech["tag"].unique()}
    return speech.with_columns(pl.col("tag").replace_strict(names))


def _by_kind(frame: pl.DataFrame, kinds: list[str]) -> dict[str, Any]:
    return {kind: _columns(frame.filter(pl.col("kind") == kind)) for kind in kinds}


def _columns(frame: pl.DataFrame) -> dict[str, list[Any]]:
    return {name: [_number(value) for value in frame[name]] for name in frame.columns if name != "kind"}


def _number(value: Any) -> Any:
    """Return a number in five digits, as a page shows it at most; null where it is undefined."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if isfinite(value) else None
    return value
