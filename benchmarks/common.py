"""Timing and printing shared by the benchmarks."""

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from runpy import run_path
from statistics import median
from typing import Any

import torch

DATA: Path = run_path(str(Path(__file__).parents[1] / "tests" / "helpers" / "data_folder.py"))[
    "DATA"
]
"""Real data sets, where present."""
QUICK = "BENCH_QUICK" in os.environ
"""Only what shows a slow-down within seconds."""
_RECORD = os.environ.get("BENCH_RECORD")
"""File to which every claim is added, as a line of JSON."""


def turns(functions: Sequence[Callable[[], Any]], repeats: int = 5) -> list[list[float]]:
    """Return the wall-clock seconds of every repeat of each function.

    The functions take turns, after a first turn that is not counted, so that all see the same machine.
    """
    for function in functions:
        function()
    taken: list[list[float]] = [[] for _ in functions]
    for _ in range(repeats):
        for index, function in enumerate(functions):
            taken[index].append(seconds(function))
    return taken


def seconds(function: Callable[[], Any]) -> float:
    """Return the wall-clock seconds of one call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Return the ratio of each repeat: both sides ran one after the other."""
    return [one / other for one, other in zip(over, under, strict=True)]


def report(
    claim: str, measured: float | Sequence[float], target: float, *, at_least: bool = True
) -> bool:
    """Print a figure, the median of its repeats with their spread, beside its target; return whether it is met."""
    values = [measured] if isinstance(measured, float | int) else list(measured)
    value, sign = median(values), ">=" if at_least else "<="
    met = value >= target if at_least else value <= target
    spread = f" ({min(values):.3g} to {max(values):.3g})" if len(values) > 1 else ""
    print(
        f"{'ok  ' if met else 'MISS'} {claim}: {value:.3g}{spread} (target {sign} {target:g})",
        flush=True,
    )
    _record(
        claim=claim,
        value=value,
        low=min(values),
        high=max(values),
        target=f"{sign} {target:g}",
        met=met,
    )
    return met


def not_measured(claim: str, why: str) -> None:
    """Say that a claim could not be measured on this machine."""
    print(f"--   {claim}: not measured, {why}", flush=True)
    _record(claim=claim, value=None, low=None, high=None, target="", met=None)


def machine() -> str:
    """Return what the figures were measured on."""
    return f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}, {torch.get_num_threads()} threads"


def processor() -> str:
    """Return the name of the processor."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text(encoding="utf-8").splitlines() if facts.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _record(**entry: Any) -> None:
    if _RECORD is not None:
        with Path(_RECORD).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
