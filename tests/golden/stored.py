"""Golden tables on disk: where they lie, how they are written, how a new table is compared with one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch

FOLDER = Path(__file__).parent / "tables"
PROCESSOR = Path(__file__).parent / "processor.txt"
"""The kind of processor that all tables were recorded on."""

Tables = Mapping[str, pl.DataFrame]

NOISE = {
    "reconstruction_error", "output_error", "row_sum_error", "hidden_change", "logits_change", "loss_change",
    "largest_change", "relative_change", "gap", "outside",
    "simplex_null_share",
}  # fmt: skip
"""Columns that hold rounding noise: they are compared absolutely, as shares of 1."""

SOLVED = {
    "certain_mass", "certain_mass_bfloat16", "certain_mass_error", "sink_lo", "sink_hi", "lo", "hi", "gap", "farthest",
    "distance_bound", "radius",
}  # fmt: skip
"""Columns that programs are solved for."""

ACCURACY = 1e-8
"""Accuracy of such a column: how near its proven bounds are to the least values depends on the last digits."""

UNSETTLED = {"certain_mass_bfloat16": 1e-4, "certain_mass_error": 1e-7}
"""Accuracy of bounds that are read off multipliers, of which several prove the exact end, and of a spread of ends."""

ELSEWHERE = 1e-4
"""Tolerance of local cases on other kinds of processor, as a share of the column's largest entry."""

CARRIED_ON = {
    "within_spearman": 0.05, "whole_spearman": 0.05, "pooled_spearman": 0.05,  # ranks of nearly equal numbers
    "spearman": 1e-3,
    "mean_total_variation": 0.01, "largest_total_variation": 0.01,  # of a random walk, whose steps depend on the last
    "hidden": 1e-3, "violation": 1e-3, "largest_violation": 1e-3,  # after training
    "effective": 1e-3, "contribution": 1e-3,  # differences of nearly equal numbers
}  # fmt: skip
"""The same for columns of which a rounding makes more."""

SINGLE = 1e-6
"""Relative tolerance of numbers that were computed, or are stored, in single precision."""


@dataclass(frozen=True)
class Case:
    """One small run of a study.

    Attributes:
        run: Gives its tables, by name.
        relative: Tolerance of floats; integers, words and truth values are compared exactly.
        noise: Absolute tolerance of the columns in `NOISE`.
        floor: Absolute tolerance of all floats: what is this close to 0 is 0.
        bundled: Whether it needs the bundled encoder.
        local: Whether the numbers hold to ``relative`` only for the kind of processor that they were recorded on:
            single precision rounds otherwise on another, and training, clustering and ranks carry that on. Elsewhere
            they are compared to `ELSEWHERE`; integers, words and truth values are equal there, too.
    """

    run: Callable[[], Tables]
    relative: float = 1e-12
    noise: float = 1e-12
    floor: float = 1e-15
    bundled: bool = False
    local: bool = False


AFTER_TRAINING = 1e-4
"""Relative tolerance of what depends on weights trained in single precision: two forward passes that sum in another
order train apart by this much (torch's own pass differs from itself by 9e-5 when it runs mapped over seeds)."""


def single(run, bundled=True, relative=SINGLE):
    """Return a case of a model in single precision."""
    return Case(run, relative=relative, noise=1e-5, floor=1e-9, bundled=bundled, local=True)


def processor():
    """Return what sums depend on: the processor's maker and model, where known, its widest vectors and its matrices."""
    facts = Path("/proc/cpuinfo")
    known = {}
    if facts.is_file():
        for line in facts.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(":")
            known.setdefault(name.strip(), value.strip())
    names = ("vendor_id", "cpu family", "model", "stepping")
    described = [known[name] for name in names if name in known]
    # Virtual machines give several processors one name.
    kinds = sorted(one for one in known.get("flags", "").split() if one.startswith(("amx", "avx")))
    return " ".join([*described, torch.backends.cpu.get_cpu_capability(), *kinds])


def is_recorded_here():
    """Return whether this is the kind of processor that the tables were recorded on."""
    return processor() == PROCESSOR.read_text(encoding="utf-8")


def write(name, tables):
    """Replace the stored tables of a case."""
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob(f"{name}.*.*"):
        old.unlink()
    for table, frame in tables.items():
        file = FOLDER / f"{name}.{table}.parquet"
        frame.write_parquet(file, compression="zstd", compression_level=19, statistics=False)
        nested = any(dtype.is_nested() for dtype in frame.dtypes)
        if not nested and len(text := frame.write_csv()) < file.stat().st_size:
            # Small tables are smaller as text, and can be read.
            file.unlink()
            file.with_suffix(".csv").write_text(text, encoding="utf-8")


def read(name):
    """Return the stored tables of a case."""
    return {path.name.split(".")[1]: _read(path) for path in sorted(FOLDER.glob(f"{name}.*.*"))}


def _read(path):
    if path.suffix == ".parquet":
        return pl.read_parquet(path)
    return pl.read_csv(path, infer_schema=False)


def differences(case, table, stored, new, elsewhere=False):
    """Return what a new table says otherwise than the stored one, a line a column; ``elsewhere``: on another processor.

    Columns that the stored table lacks may be added; rows stand in the same order. Stored text is read as the new
    column's type.
    """
    if len(stored) != len(new):
        return [f"{table}: {len(stored)} rows stored, {len(new)} now"]
    missing = [name for name in stored.columns if name not in new.columns]
    if missing:
        return [f"{table}: no columns {', '.join(missing)}"]
    loose = case.local and elsewhere
    found = [_column(case, _flat(stored[name]), _flat(new[name]), loose) for name in stored.columns]
    return [
        f"{table}.{name}: {said}" for name, said in zip(stored.columns, found, strict=True) if said
    ]


def _flat(column):
    return column.explode() if isinstance(column.dtype, pl.List) else column


def _column(case, stored, new, loose):
    if len(stored) != len(new) or (stored.is_null() != new.is_null()).any():
        return "other places are empty"
    if not new.dtype.is_float():
        apart = stored.cast(pl.String).ne_missing(new.cast(pl.String))
        return (
            f"{apart.sum()} of {len(apart)} differ, first in row {apart.arg_max()}"
            if apart.any()
            else ""
        )
    relative = case.relative
    if pl.Float32 in (stored.dtype, new.dtype):
        relative = max(relative, SINGLE)
    floor = case.noise if stored.name in NOISE else case.floor
    if stored.name in SOLVED:
        accuracy = UNSETTLED.get(stored.name, ACCURACY)
        relative, floor = max(relative, accuracy), max(floor, accuracy)
    expected, got = (column.cast(pl.Float64).drop_nulls().to_numpy() for column in (stored, new))
    if loose:
        largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
        floor = max(floor, CARRIED_ON.get(stored.name, ELSEWHERE) * largest)
    apart = ~np.isclose(got, expected, rtol=relative, atol=floor, equal_nan=True)
    if not apart.any():
        return ""
    distance = np.abs(got - expected)[apart] / np.maximum(np.abs(expected[apart]), floor)
    return f"{apart.sum()} of {len(apart)} differ, by up to {distance.max():.1e} of themselves (allowed {relative:.0e})"
