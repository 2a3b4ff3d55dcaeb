"""Intervals and alternatives that were run on an audit's folder, as parts of the audit's report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from identilens.report.alternatives_report import alternatives_part
from identilens.report.intervals_report import intervals_part
from identilens.report.part import Part
from identilens.results.alternatives import Alternatives
from identilens.results.intervals import TABLES, Intervals
from identilens.results.run_folder import read_record


def joined_parts(folder: Path, record: dict[str, Any]) -> list[Part]:
    """Return a part for each kind of result that lies finished beneath an audit's folder.

    Texts that the audit holds keep their numbers; others are counted on from there.

    Args:
        folder: The audit's folder.
        record: The audit's provenance.
    """
    numbers = {digest: index for index, digest in reversed(list(enumerate(record["texts"]["sha256"])))}
    count = record["texts"]["count"]

    def renumbered(held: dict[str, Any]) -> dict[int, int]:
        for digest in held["texts"]["sha256"]:
            numbers.setdefault(digest, count + len([one for one in numbers.values() if one >= count]))
        return {index: numbers[digest] for index, digest in enumerate(held["texts"]["sha256"])}

    parts = []
    intervals = [Intervals.load(path) for path in _finished(folder, "intervals")]
    if intervals:
        maps = [renumbered(one.provenance) for one in intervals]
        parts.append(intervals_part(_joined_intervals(intervals, maps)))
    alternatives = [Alternatives.load(path) for path in _finished(folder, "alternatives")]
    if alternatives:
        maps = [renumbered(one.provenance) for one in alternatives]
        parts.append(alternatives_part(_joined_alternatives(alternatives, maps)))
    return parts


def _finished(folder: Path, analysis: str) -> list[Path]:
    paths = sorted(path for path in folder.glob(f"{analysis}-*") if path.is_dir())
    return [path for path in paths if (held := read_record(path)) is not None and held["finished"]]


def _joined_intervals(results: Sequence[Intervals], maps: Sequence[dict[int, int]]) -> Intervals:
    tables = {
        name: _stacked([getattr(one, name) for one in results], maps).unique(maintain_order=True) for name in TABLES
    }
    return Intervals(**tables, provenance=results[0].provenance)


def _joined_alternatives(results: Sequence[Alternatives], maps: Sequence[dict[int, int]]) -> Alternatives:
    matrices, tokens = {}, {}
    for one, numbers in zip(results, maps, strict=True):
        for key in one.matrices:
            text, rest = key.removeprefix("text").split(".", 1)
            matrices[f"text{numbers[int(text)]}.{rest}"] = one.matrices[key]
        tokens |= {numbers[text]: held for text, held in one.tokens.items()}
    keys = ["text", "layer", "head", "kind", "alternative"]
    table = _stacked([one.table for one in results], maps).unique(keys, keep="last", maintain_order=True)
    changes = _stacked([one.changes for one in results], maps)
    changes = changes.unique([*keys, "state", "state_layer"], keep="last", maintain_order=True)
    return Alternatives(table, changes, results[0].provenance, matrices, tokens)


def _stacked(tables: Sequence[pl.DataFrame], maps: Sequence[dict[int, int]]) -> pl.DataFrame:
    renumbered = [
        table.with_columns(pl.col("text").replace_strict(numbers, return_dtype=pl.Int64))
        for table, numbers in zip(tables, maps, strict=True)
    ]
    return pl.concat(renumbered)
