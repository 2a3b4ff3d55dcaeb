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

from common import machine, report

import identilens as idl
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import provenance
from identilens.runs.study import run_study
from identilens.runs.workers import Engine
from identilens.studies.audit.settings import AuditSettings
from identilens.studies.audit.study import AuditStudy

JOINED = 50, 250
"""Parts of the two runs that are joined, to tell the cost of a part from that of a run."""

SETTINGS = AuditSettings(certain_rows=0, examples=0)

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
        driver: Of the driver's thread that hands out parts, on the processor, a part, once workers run.
        end: From the last part's end to the end.
    """

    whole: float
    start: float
    part: float
    driver: float
    end: float


def timed(lens: idl.Lens, texts: list[str], engine: Engine | None) -> Timed:
    """Return what an audit takes on an engine."""
    ends: list[tuple[float, float, int]] = []
    start = time.perf_counter()

    def told(done: int, total: int, note: str) -> None:
        if done:
            ends.append((time.perf_counter(), time.thread_time(), done))

    with tempfile.TemporaryDirectory() as folder:
        idl.audit(
            lens, texts, out=Path(folder) / "run", settings=SETTINGS, progress=told, engine=engine
        )
    end = time.perf_counter()
    (first, used, done), (last, used_last, total) = ends[0], ends[-1]
    parts = max(1, (total - done) // PART)
    return Timed(
        end - start, first - start, (last - first) / parts, (used_last - used) / parts, end - last
    )


def joining(lens: idl.Lens, parts: int) -> float:
    """Return the processor's seconds for joining so many parts that workers have written, in this process."""
    study = AuditStudy(lens, [TEXT.format(number) for number in range(parts * PART)], SETTINGS)
    output = study.run(0)
    record = provenance(study.name, study.identity(), study.settings.recorded())
    with tempfile.TemporaryDirectory() as place:
        content = output.content()
        with RunFolder.open(Path(place) / "run", record) as folder:
            folder.plan(parts)
            for part in range(parts):
                folder.write_part(part, content)
        start = time.process_time()
        run_study(study, out=Path(place) / "run", resume=True, progress=False)
        return time.process_time() - start


def memory(lines: int) -> tuple[int, float]:
    """Return how many MB a driver takes for a file of so many lines, beside the model."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(TEXT.format(number) + "\n" for number in range(lines))
        file.flush()
        found = subprocess.run(
            [sys.executable, "-c", MEMORY, file.name], capture_output=True, text=True, check=True
        )
    count, before, after = map(int, found.stdout.split())
    return count, (after - before) / 1024


def main(texts: int = 500, repeats: int = 3) -> None:
    """Print the figures beside their targets: medians of runs that take turns."""
    print(
        machine(), f"{os.cpu_count()} cores, {texts} texts, parts of {PART}, medians of {repeats}"
    )
    lens = idl.load(idl.bundled_model(), device="cpu")
    given = [TEXT.format(number) for number in range(texts)]
    timed(lens, given[:PART], None)  # what is done once only is not the first one's cost
    turns = [
        {name: timed(lens, given, engine) for name, engine in ENGINES.items()}
        for _ in range(repeats)
    ]
    part = {name: median(turn[name].part for turn in turns) for name in ENGINES}
    for name in ENGINES:
        each = ", ".join(f"{turn[name].part:.3f}" for turn in turns)
        whole = median(turn[name].whole for turn in turns)
        print(
            f"  {name}: {whole:.1f} s in all, {part[name]:.3f} s a part once workers run ({each})"
        )
    actor = [turn["1 actor"] for turn in turns]
    start, hand_out, end = (
        median(getattr(one, name) for one in actor) for name in ("start", "driver", "end")
    )
    fewer, more = (median(joining(lens, parts) for _ in range(repeats)) for parts in JOINED)
    join = (more - fewer) / (JOINED[1] - JOINED[0])
    print(
        f"  joining {JOINED[0]} parts: {fewer:.2f} s, {JOINED[1]} parts: {more:.2f} s (processor)",
        end=" ",
    )
    print(
        f"= {fewer - JOINED[0] * join:.2f} s + {1000 * join:.1f} ms a part; {end:.1f} s to the end of the actor's run"
    )
    print(
        f"  for benchmarks/fleet.py: --part-seconds {part['1 actor']:.3f} --start {start - part['1 actor']:.1f}",
        end=" ",
    )
    print(f"--hand-out {hand_out:.4f} --join {join:.4f}")
    report("2 local workers over 1", part["1 local worker"] / part["2 local workers"], 1.7)
    report(
        "ms that Ray adds to a part",
        1000 * (part["1 actor"] - part["this process"]),
        50,
        at_least=False,
    )
    small, large = memory(20_000)[1], memory(400_000)[1]
    print(
        f"  the driver: {small:.0f} MB more than the model for 20,000 texts, {large:.0f} MB for 400,000"
    )
    report("MB more for 20 times as many texts", large - small, 30, at_least=False)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
