"""Studies killed with kill -9 at drawn points, then resumed: `python -m helpers.dying STUDY --points 20`.

Without words it reads lines of them, each a list as JSON, and answers each with a line.

A point is the so-manieth change that the process makes in the file system. Every run is a fork of this process, which
imports everything and computes nothing. Prints the points as JSON: for each what differs from an undisturbed run, and
the parts that were missing and that were run again.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import polars as pl
import torch

import identilens as idl
from helpers import dycks, zoo
from helpers.chats import answering
from helpers.killing import CHANGES, contents
from helpers.made_tasks import write_trec
from identilens.lab.dyck.settings import DyckSetting
from identilens.studies.registry import study_named

TEXTS = [[number, 7, 8, 9, 10, 11][: 4 + number % 3] for number in range(5, 15)]
MANY = [[5 + (3 * number + place) % 40 for place in range(6)] for number in range(200)]
WORDS = [[5 + (3 * number + place) % 40 for place in range(8)] for number in range(30)]
TASK = {"max_length": 16, "d_model": 16, "attention_heads": 2, "feed_forward": 24, "batch_size": 8}
DYCK = [DyckSetting("tiny", dycks.MINIMAL, dycks.QUICK)]
PROBES = {
    "probes": "naive,linear",
    "distances": "cosine",
    "folds": 2,
    "learning_rates": (0.01, 0.003),
    "max_epochs": 2,
}


def model():
    return idl.Lens(zoo.build("bert"))


CASES = {
    "audit": lambda at, **run: idl.audit(model(), MANY, certain_rows=0, examples=1, **run),
    "certify": lambda at, **run: idl.certify(
        model(), TEXTS[:2], layers=0, heads=0, claim=idl.claims.weight(1), certificates=True, **run
    ),
    "answer": lambda at, **run: idl.answer(
        answering("llama"),
        ["snow fell.", "nobody came.", "a ferry"],
        max_new_tokens=3,
        bounded=1,
        **run,
    ),
    "influence": lambda at, **run: idl.influence(
        model(), TEXTS[:2], outcome="states", layers=0, directions=2, **run
    ),
    "inversion": lambda at, **run: idl.inversion(
        idl.Lens(zoo.build("gpt2")), TEXTS[:2], noise="int8", bits=4, **run
    ),
    "alternatives": lambda at, **run: idl.alternatives(
        model(), TEXTS[:2], layers=0, heads=0, starts=1, **run
    ),
    "lab encoder logit-ranks": lambda at, **run: idl.lab.logit_ranks(
        model(), MANY[:3], count=5, lengths=(0.2, 9.0), **run
    ),
    "mixing": lambda at, **run: idl.mixing(
        model(), TEXTS[:3], method="exact", rollouts=False, **run
    ),
    "rollout": lambda at, **run: idl.rollout(model(), TEXTS[:3], queries="last", **run),
    "patterns": lambda at, **run: idl.patterns(model(), TEXTS[:3], heads=0, rows=2, **run),
    "sources": lambda at, **run: idl.sources(
        idl.Lens(zoo.build("gpt2")), TEXTS[:3], target="7", layers=0, **run
    ),
    "tokens": lambda at, **run: idl.token_identifiability(model(), WORDS, **PROBES, **run),
    "structure": lambda at, **run: idl.structure(
        model(), WORDS[:10], length=8, clusters=2, compared_pairs=0, perturbed=1, **run
    ),
    "faithfulness": lambda at, **run: idl.faithfulness(
        model(), WORDS[:3], rows=1, groups=(1, 2), searched=3, alternatives=1, **run
    ),
    "rationales": lambda at, **run: idl.rationales(zoo.classifier(), WORDS[:4], draws=2, **run),
    "lab reversal": lambda at, **run: idl.lab.train_reversal(
        model="lstm", length=5, epochs=2, train=64, held_out=32, hidden=16, inputs=8, **run
    ),
    "lab encoder train": lambda at, **run: idl.lab.train(
        task="trec", data=at / "trec", d_k=4, epochs=2, **TASK, **run
    ),
    "lab encoder sweep": lambda at, **run: idl.lab.sweep(
        tasks="trec", heads="concat", d_k=(1, 3), data=at / "trec", epochs=1, **TASK, **run
    ),
    "lab dyck train": lambda at, **run: idl.lab.train_dyck(
        DYCK, seeds=[0, 1, 2], at_once=1, **dycks.MEASURING, **run
    ),
    "lab dyck analyse": lambda at, **run: idl.lab.analyse_dyck(
        models=sorted((at / "models").glob("models/*/seed*")),
        length=dycks.QUICK.length,
        **dycks.MEASURING,
        **run,
    ),
    "lab dyck construct": lambda at, **run: idl.lab.construct_dyck(
        depth=2, lengths=(10, 20), count=3, off_balance=(0.0, 1.0), **run
    ),
    "lab dyck prune": lambda at, **run: idl.lab.prune_dyck(
        size=2, width=2, candidates=(8, 3), seeds=2, inputs=50, starts=2, steps=20, **run
    ),
}
"""A small run of every study; ``at`` holds what it reads."""


def comparable(folder):
    """The files of a run; how long training took is no part of it."""
    held = contents(folder)
    for name in [name for name in held if name.endswith(".parquet")]:
        frame = pl.read_parquet(folder / name, glob=False)
        if "seconds" in frame.columns:
            held[name] = frame.drop("seconds").write_json()
    return held


def forked(work, *given, patience=600):
    """What a function returns in a fork of this process; None where that is killed."""
    receives, sends = os.pipe()
    process = os.fork()
    if not process:
        os.close(receives)
        try:
            found = work(*given)
        except BaseException:
            found = {"error": traceback.format_exc()}
        with os.fdopen(sends, "w") as stream:
            json.dump(found, stream)
        os._exit(0)
    os.close(sends)
    with os.fdopen(receives) as stream:
        timer = time.monotonic() + patience
        while os.waitpid(process, os.WNOHANG) == (0, 0):
            if time.monotonic() > timer:
                os.kill(process, signal.SIGKILL)
            time.sleep(0.01)
        content = stream.read()
    return json.loads(content) if content else None


def watched(study, ran, tick):
    """From now on parts that are run are noted, and ``tick`` is called before each change of the file system."""

    def told(change, note):
        def changed(*given, **options):
            note(*given)
            return change(*given, **options)

        return changed

    for name in CHANGES:
        setattr(Path, name, told(getattr(Path, name), lambda *_: tick()))
    study.run = told(study.run, lambda _, part: ran.append(part))


class Trial:
    """One study, run in a folder that holds what it reads and all of its runs."""

    def __init__(self, name, at):
        self.at, self.study, self.case = at, study_named(name), CASES[name]
        self.parts = forked(prepare, name, at, self.case)

    def undisturbed(self, folder):
        """The number of points of a run."""
        happened = []
        watched(self.study, [], lambda: happened.append(1))
        self.case(self.at, out=folder)
        return len(happened)

    def killed(self, folder, point):
        """Run until the point."""
        left = [point]

        def tick():
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGKILL)

        watched(self.study, [], tick)
        self.case(self.at, out=folder)
        return {}

    def resumed(self, folder):
        """What differs in the end, and the parts that were missing and that were run."""
        ran, missing = [], self.missing(folder)
        watched(self.study, ran, lambda: None)
        self.case(self.at, out=folder, resume=True)
        return {"missing": missing, "ran": sorted(ran), "differs": self.differs(folder)}

    def missing(self, folder):
        """Numbers of the parts that are not whole; None for all, of a folder that holds none yet."""
        record = folder / "provenance.json"
        if record.exists() and json.loads(record.read_text())["finished"]:
            return []
        done = {int(file.stem) for file in (folder / "parts").glob("[0-9]*.safetensors")}
        return sorted(set(range(self.parts)) - done)

    def differs(self, folder):
        found, whole = comparable(folder), comparable(self.at / "whole")
        return sorted(name for name in {**found, **whole} if found.get(name) != whole.get(name))


def prepare(name, at, case):
    """Write what a study reads, and run it undisturbed in one process; return its number of parts."""
    write_trec(at / "trec" / "trec")
    if name == "lab dyck analyse":
        idl.lab.train_dyck(DYCK, seeds=[0, 1], **dycks.MEASURING, out=at / "models")
    study = study_named(name)
    sizes, whole = study.sizes, []

    def told(self):
        whole.append(len(sizes(self)))
        return sizes(self)

    study.sizes = told
    case(at, out=at / "whole")
    return whole[-1]


def tried(options):
    """The points of a study, by the options of the command line."""
    os.dup2(2, 1)  # what studies print is no answer
    drawn = random.Random(options.study)
    with tempfile.TemporaryDirectory() as place:
        at = Path(place).resolve()
        trial = Trial(options.study, at)
        happened = forked(trial.undisturbed, at / "counted")
        for counted in (trial.parts, happened):
            if not isinstance(counted, int):
                sys.exit(counted["error"] if counted else "the undisturbed run took too long")
        rows = []
        for number, point in enumerate(sorted(drawn.sample(range(happened), options.points))):
            folder = at / f"run{number}"
            killed = forked(trial.killed, folder, point) is None
            found = forked(trial.resumed, folder) or {"error": "killed"}
            rows.append({"point": point, "killed": killed, **found})
            print(rows[-1], file=sys.stderr, flush=True)
    return {"study": options.study, "points": rows}


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("study", choices=CASES)
    words.add_argument("--points", type=int, default=20)
    torch.set_num_threads(1)
    lines = [json.dumps(sys.argv[1:])] if sys.argv[1:] else sys.stdin
    for line in lines:
        found = forked(tried, words.parse_args(json.loads(line)), patience=550)
        print(json.dumps(found or {"error": "it took too long"}), flush=True)


if __name__ == "__main__":
    main()
