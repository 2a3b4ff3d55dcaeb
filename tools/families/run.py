"""Tries every model type of the installed transformers, and writes docs/results/families.csv; called again, it resumes.

Usage: PYTHONPATH=tools python -m families.run [--work FILE] [--only FAMILY ...] [--limit SECONDS]
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
import warnings
from dataclasses import asdict, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers

from families.tiny import model_types
from families.trial import Trial, trial

ROOT = Path(__file__).parents[2]
MEMORY = 16 * 2**30
USES = 80
"""Types that one process tries before another takes over: classes once imported stay in memory."""


def work(pipe: Connection) -> None:
    """Try the types that come through a pipe, one after another."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    while family := pipe.recv():
        pipe.send(asdict(trial(family)))


class Worker:
    """A process that tries types, replaced when it is too slow, dies, or has tried many."""

    def __init__(self, limit: float) -> None:
        self.limit, self._process, self._uses = limit, None, 0

    def try_one(self, family: str) -> dict[str, Any]:
        """Return what became of a type."""
        if self._process is None or self._uses == USES:
            self._start()
        self._uses += 1
        self._pipe.send(family)
        try:
            if self._pipe.poll(self.limit):
                return self._pipe.recv()
            reason = f"no answer within {self.limit:g} s"
        except EOFError:
            reason = f"the process died (it may use {MEMORY // 2**30} GiB of memory)"
        self.stop()
        return asdict(Trial(family, "not built", reason=reason))

    def stop(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._process = None

    def _start(self) -> None:
        self.stop()
        context = multiprocessing.get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process, self._uses = context.Process(target=work, args=(other,), daemon=True), 0
        self._process.start()
        other.close()


def main() -> None:
    """Try the types that the file of trials does not hold yet, then write the list and the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "families.jsonl", help="trials, a line each"
    )
    parser.add_argument("--only", nargs="+", help="try these types anew, and write nothing else")
    parser.add_argument("--limit", type=float, default=60, help="seconds a type may take")
    given = parser.parse_args()
    given.work.parent.mkdir(parents=True, exist_ok=True)
    lines = given.work.read_text(encoding="utf-8").splitlines() if given.work.exists() else []
    done = {line["family"]: line for line in map(json.loads, lines)}
    worker, types = Worker(given.limit), model_types()
    for number, family in enumerate(given.only or types):
        if family in done and not given.only:
            continue
        start = time.monotonic()
        done[family] = worker.try_one(family) | {"seconds": round(time.monotonic() - start, 1)}
        with given.work.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[family]) + "\n")
        told = done[family]
        print(
            f"{number}/{len(types)} {family}: {told['outcome']} {told['inputs']} {told['reason']}",
            flush=True,
        )
    worker.stop()
    if given.only:
        return
    names = {one.name for one in fields(Trial)}
    trials = [
        Trial(**{name: value for name, value in done[family].items() if name in names})
        for family in types
    ]
    served_types = "".join(f"{one.family}\n" for one in trials if one.outcome == "served")
    (ROOT / "src" / "identilens" / "models" / "served.txt").write_text(served_types, "utf-8")
    table = pl.DataFrame(trials).with_columns(
        pl.col(pl.String).replace("", None), transformers=pl.lit(transformers.__version__)
    )
    table.write_csv(
        ROOT / "docs" / "results" / "families.csv", float_scientific=True, float_precision=0
    )
    defects = [one for one in trials if one.outcome in ("crash", "wrong")]
    print(
        f"{len(trials)} types, {sum(done[one]['seconds'] for one in types) / 60:.0f} min, {len(defects)} defects"
    )
    sys.exit(bool(defects))


if __name__ == "__main__":
    main()
