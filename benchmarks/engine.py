"""What workers gain and cost: two local workers over one, Ray's added cost for a part, memory for many texts."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import machine, report

import identilens as idl
from identilens.runs.engines.engine import Engine

PART = 32
"""Texts in a part of an audit."""

TEXT = "The keeper of the lighthouse wrote down every ship, although none had stopped there for years, number {}."

ENGINES: dict[str, Engine | None] = {
    "this process": None, "1 local worker": idl.Local(1), "2 local workers": idl.Local(2),
    "1 actor": idl.Ray(workers=1),
}  # fmt: skip

MEMORY = """
import re, sys
from pathlib import Path
import identilens as idl
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.study import AuditStudy

def kilobytes(name):
    return int(re.search(rf"{name}:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

lens = idl.load(idl.bundled_model(), device="cpu")
Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
before = kilobytes("VmRSS")
texts = idl.read_texts(sys.argv[1])
study = AuditStudy(lens, texts, AuditSettings(certain_rows=0, examples=0))
study.identity(), study.sizes()
print(len(texts), before, kilobytes("VmHWM"))
"""


@dataclass(frozen=True)
class Timed:
    """What an audit takes on an engine, in seconds.

    Attributes:
        whole: From the call to the end.
        start: From the call to the first part's end.
        part: A part, once workers run.
        driver: Of the driver's processor, a part, once workers run.
        join: From the last part's end to the end, a part.
    """

    whole: float
    start: float
    part: float
    driver: float
    join: float


def timed(lens: idl.Lens, texts: list[str], engine: Engine | None) -> Timed:
    """Return what an audit takes on an engine."""
    ends: list[tuple[float, float, int]] = []
    start = time.perf_counter()

    def told(done: int, total: int, note: str) -> None:
        if done:
            ends.append((time.perf_counter(), time.process_time(), done))

    chosen: dict[str, Any] = {"certain_rows": 0, "examples": 0, "progress": told, "engine": engine}
    with tempfile.TemporaryDirectory() as folder:
        idl.audit(lens, texts, out=Path(folder) / "run", **chosen)
    end = time.perf_counter()
    (first, used, done), (last, used_last, total) = ends[0], ends[-1]
    parts = max(1, (total - done) // PART)
    driver, join = (used_last - used) / parts, (end - last) / (total / PART)
    return Timed(end - start, first - start, (last - first) / parts, driver, join)


def memory(lines: int) -> tuple[int, float]:
    """Return how many MB a driver takes for a file of so many lines, beside the model."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(TEXT.format(number) + "\n" for number in range(lines))
        file.flush()
        found = subprocess.run([sys.executable, "-c", MEMORY, file.name], capture_output=True, text=True, check=True)
    count, before, after = map(int, found.stdout.split())
    return count, (after - before) / 1024


def main(texts: int = 500, repeats: int = 3) -> None:
    """Print the figures beside their targets: medians of runs that take turns."""
    print(machine(), f"{os.cpu_count()} cores, {texts} texts, parts of {PART}, medians of {repeats}")
    lens = idl.load(idl.bundled_model(), device="cpu")
    given = [TEXT.format(number) for number in range(texts)]
    timed(lens, given[:PART], None)  # what is done once only is not the first one's cost
    turns = [{name: timed(lens, given, engine) for name, engine in ENGINES.items()} for _ in range(repeats)]
    part = {name: median(turn[name].part for turn in turns) for name in ENGINES}
    for name in ENGINES:
        each = ", ".join(f"{turn[name].part:.3f}" for turn in turns)
        whole = median(turn[name].whole for turn in turns)
        print(f"  {name}: {whole:.1f} s in all, {part[name]:.3f} s a part once workers run ({each})")
    actor = [turn["1 actor"] for turn in turns]
    costs = {name: median(getattr(one, name) for one in actor) for name in ("start", "driver", "join")}
    start = costs["start"] - part["1 actor"]
    print(f"  for benchmarks/fleet.py: --part-seconds {part['1 actor']:.3f} --start {start:.1f}", end=" ")
    print(f"--hand-out {costs['driver']:.4f} --join {costs['join']:.4f}")
    report("2 local workers over 1", part["1 local worker"] / part["2 local workers"], 1.7)
    report("ms that Ray adds to a part", 1000 * (part["1 actor"] - part["this process"]), 50, at_least=False)
    small, large = memory(20_000)[1], memory(400_000)[1]
    print(f"  the driver: {small:.0f} MB more than the model for 20,000 texts, {large:.0f} MB for 400,000")
    report("MB more for 20 times as many texts", large - small, 30, at_least=False)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
