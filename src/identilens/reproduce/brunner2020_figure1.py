"""Figures 1 and 5 of Brunner et al. 2020: raw and effective attention on Wikipedia segments of up to 128 tokens."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import polars as pl
from annotated_types import Ge

from identilens.reproduce.brunner2020 import BrunnerSettings, Figures, Rows, figures
from identilens.studies.audit.result import Audit
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.study import audit

SEPARATORS = ("[SEP]", "</s>")
STRUCTURAL = ("[CLS]", "<s>", *SEPARATORS)
SAID = {
    "raw": "“the [SEP] tokens attract more in middle layers”",
    "effective": "“the peak of [SEP] token observed by raw attention has disappeared”",
}
"""The paper's words on attention to the separator; of other tokens it shows curves."""


@dataclass(frozen=True, kw_only=True)
class Figure1Settings(BrunnerSettings, AuditSettings):
    """The audit: the paper cuts texts to 128 tokens."""

    max_length: Annotated[int | None, Ge(1)] = 128


def compare(result: Audit) -> Rows:
    """Return the paper's numbers on correlation, null space and structural tokens beside those of an audit."""
    table, d_v = result.table, int(result.table["d_v"][0])
    bounded = table.select(((pl.col("n_key") - pl.col("d_v")).clip(0) == pl.col("nullity")).mean()).item()
    short, lengths = table.filter(pl.col("n_key") <= d_v), result.by_length().sort("n_key")
    first, last = lengths.row(0, named=True), lengths.row(-1, named=True)
    rows = [
        ("1a", "correlation, texts of at most d_v tokens", "1", _mean(short["pearson"])),
        ("1a", "correlation, shortest and longest texts", "falls with length",
         f"{first['pearson']:.3f} (n = {first['n_key']}), {last['pearson']:.3f} (n = {last['n_key']})"),
        ("1a", "maps whose nullity is max(n − d_v, 0)", "all", f"{100 * bounded:.1f} % (d_v = {d_v})"),
    ]  # fmt: skip
    return rows + peaks(result)


def peaks(found: Audit) -> Rows:
    """Return where each structural token receives most raw, and most effective attention, in the mean of a layer."""
    layers = found.received().filter(pl.col("key_type").is_in(STRUCTURAL)).group_by("key_type", "layer").agg(
        pl.col("raw", "effective").mean()
    )  # fmt: skip
    rows: Rows = []
    for token in layers["key_type"].unique().sort():
        for figure, measure in (("1b", "raw"), ("1c", "effective")):
            most = layers.filter(key_type=token).sort("layer").sort(measure, maintain_order=True).row(-1, named=True)
            rows.append((figure, f"largest layer mean of {measure} attention on {token}",
                         SAID[measure] if token in SEPARATORS else "curve only",
                         f"{most[measure]:.4f} (layer {most['layer'] + 1}, from 1)"))  # fmt: skip
    return rows


def tables(result: Audit) -> Mapping[str, pl.DataFrame]:
    """Return correlation by length, and attention by token type."""
    return {"by_length": result.by_length(), "received": result.received(), "token_types": result.token_types}


def _mean(values: pl.Series) -> str:
    return "no such text" if values.is_empty() else f"{values.mean():.6f}"


RECIPE = figures(
    audit, AuditSettings, Figure1Settings,
    Figures("brunner2020-figure1", "Figures 1 and 5", "wiki", compare,
            ("correlation_by_length", "token_types", "attention_to_type"), tables),
)  # fmt: skip
