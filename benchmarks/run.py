"""Runs the benchmarks one after another and prints every claim in one table, beside what was measured before.

Usage: python benchmarks/run.py [--quick] [NAME ...]

Each whole run is added to benchmarks/history.csv with the day and the machine. A figure that is worse by a quarter than
the last one of the same machine is marked. What the scripts print goes to build/bench.log. Exit code 1 if a claim
misses its target.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from common import processor

ROOT = Path(__file__).parents[1]
HISTORY = ROOT / "benchmarks" / "history.csv"
COLUMNS: list[str] = ["day", "machine", "script", "claim", "value", "low", "high", "target", "met"]
SCRIPTS = (
    "start", "device", "audit_overhead", "intervals", "cones", "certain_mass", "mixing", "memory",
)  # fmt: skip
QUICK = ("start", "device", "audit_overhead", "intervals", "cones", "certain_mass")
WORSE = 1.25
MACHINE = f"{processor()}, {os.cpu_count()} cores"

Row = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="the quick part: smaller, fewer repeats, not stored"
    )
    parser.add_argument("names", nargs="*", help="scripts to run; all by default")
    options = parser.parse_args()
    before, rows = last_values(), []
    log = ROOT / "build" / "bench.log"
    log.parent.mkdir(exist_ok=True)
    log.unlink(missing_ok=True)
    start = time.perf_counter()
    for name in options.names or (QUICK if options.quick else SCRIPTS):
        print(f"{name} ...", end=" ", flush=True)
        began = time.perf_counter()
        rows += run(name, options.quick, log)
        print(f"{time.perf_counter() - began:.0f} s", flush=True)
    print(table(rows, before))
    print(
        f"{MACHINE}, {(time.perf_counter() - start) / 60:.1f} min; the scripts' own words are in {log}"
    )
    if not options.quick:
        store(rows)
    return 0 if all(row["met"] is not False for row in rows) else 1


def run(name: str, quick: bool, log: Path) -> list[dict[str, Any]]:
    """Return the claims of one script; one that fails without a claim is itself a claim that misses."""
    record = ROOT / "build" / "bench.jsonl"
    record.unlink(missing_ok=True)
    environment = {**os.environ, "BENCH_RECORD": str(record)} | (
        {"BENCH_QUICK": "1"} if quick else {}
    )
    with log.open("a", encoding="utf-8") as output:
        output.write(f"== {name}\n")
        output.flush()
        command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py")]
        done = subprocess.run(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    lines = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    rows = [{"script": name, **json.loads(line)} for line in lines]
    if done.returncode and all(row["met"] is not False for row in rows):
        failed = f"it ends with code {done.returncode}, see {log}"
        rows.append(
            {
                "script": name,
                "claim": failed,
                **dict.fromkeys(("value", "low", "high")),
                "target": "",
                "met": False,
            }
        )
    return rows


def table(rows: Sequence[Row], before: Mapping[tuple[str, str], float]) -> str:
    """Return the claims as text, one a line."""
    lines = [_line(row, before.get((row["script"], row["claim"]))) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (zip(line, widths, strict=True) for line in lines)
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in line).rstrip() for line in padded
    )


def _line(row: Row, old: float | None) -> tuple[str, ...]:
    sign = {True: "ok", False: "MISS", None: "--"}[row["met"]]
    if row["value"] is None:
        return sign, row["script"], row["claim"], "not measured", "", row["target"], ""
    spread = "" if row["low"] == row["high"] else f"({row['low']:.3g} to {row['high']:.3g})"
    change = "" if old is None else f"before {old:.3g}{_worse(row, old)}"
    return sign, row["script"], row["claim"], f"{row['value']:.3g}", spread, row["target"], change


def _worse(row: Row, old: float) -> str:
    """Return a mark for a figure that is worse than before; its target tells which way is better."""
    if old <= 0 or row["value"] <= 0:
        return ""
    ratio = old / row["value"] if row["target"].startswith(">=") else row["value"] / old
    return " WORSE" if ratio > WORSE else ""


def last_values() -> dict[tuple[str, str], float]:
    """Return the last figures stored of this machine, by script and claim."""
    if not HISTORY.is_file():
        return {}
    with HISTORY.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["machine"] == MACHINE and row["value"]]
    return {(row["script"], row["claim"]): float(row["value"]) for row in rows}


def store(rows: Sequence[Row]) -> None:
    """Add the figures of this run to the history."""
    new, day = not HISTORY.is_file(), datetime.now(UTC).date().isoformat()
    with HISTORY.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            figures = {
                name: "" if row[name] is None else f"{row[name]:.4g}"
                for name in ("value", "low", "high")
            }
            writer.writerow({**row, **figures, "day": day, "machine": MACHINE})


if __name__ == "__main__":
    sys.exit(main())
