"""Tries every model type of the installed transformers, and writes docs/results/families.csv; called again, it resumes.

Usage: PYTHONPATH=tools python -m families.run [--work FILE] [--only FAMILY ...]
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import warnings
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, get_args

import polars as pl
import torch
import transformers

from families.tiny import model_types
from families.trial import Outcome, Trial, trial

ROOT = Path(__file__).parents[2]
MEMORY, SECONDS = 16 * 2**30, 60
"""Address space and time that one type may take."""
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

    def __init__(self) -> None:
        self._process, self._uses = None, 0

    def try_one(self, family: str) -> dict[str, Any]:
        """Return what became of a type."""
        if self._process is None or self._uses == USES:
            self._start()
        self._uses += 1
        self._pipe.send(family)
        try:
            if self._pipe.poll(SECONDS):
                return self._pipe.recv()
            reason = f"no answer within {SECONDS} s"
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
    options = parser.parse_args()
    options.work.parent.mkdir(parents=True, exist_ok=True)
    lines = options.work.read_text(encoding="utf-8").splitlines() if options.work.exists() else []
    done = {line["family"]: line for line in map(json.loads, lines)}
    worker, types = Worker(), model_types()
    for number, family in enumerate(options.only or types):
        if family in done and not options.only:
            continue
        done[family] = worker.try_one(family)
        with options.work.open("a", encoding="utf-8") as file:
            file.write(json.dumps(done[family]) + "\n")
        told = done[family]
        print(
            f"{number}/{len(types)} {family}: {told['outcome']} {told['inputs']} {told['reason']}",
            flush=True,
        )
    worker.stop()
    if options.only:
        return
    trials = [Trial(**done[family]) for family in types]
    served_types = "".join(f"{each.family}\n" for each in trials if each.outcome == "served")
    (ROOT / "src" / "identilens" / "models" / "served.txt").write_text(served_types, "utf-8")
    table = pl.DataFrame(trials).with_columns(
        pl.col(pl.String).replace("", None), transformers=pl.lit(transformers.__version__)
    )
    table = table.sort(pl.col("outcome").cast(pl.Enum(get_args(Outcome))), maintain_order=True)
    file = ROOT / "docs" / "results" / "families.csv"
    table.write_csv(file, float_scientific=True, float_precision=0)
    defects = [each for each in trials if each.outcome in ("crash", "wrong")]
    print(f"{len(trials)} types, {len(defects)} defects")
    sys.exit(bool(defects))


if __name__ == "__main__":
    main()
