"""Studies killed with kill -9 at drawn points, then resumed: `python -m helpers.dying STUDY --points 20`.

Without words it reads lines of them, each a list as JSON, and answers each with a line.

A point is the so-manieth change that the process makes in the file system. Who dies is the process that runs the
study, or with ``--engine`` the driver, a worker (``--dies worker``) or a Ray cluster's head node (``--dies head``). For
the head node a point is the so-manieth time that parts are handed out, so that parts are open when it dies; for a
driver half of the points are such. Every run is a fork of this process, which imports everything and computes nothing.
Prints the points as JSON: for each what differs from an undisturbed run in one process, and the parts that were missing
and that were run again.
"""

import argparse
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack, suppress
from math import ceil
from pathlib import Path
from threading import Timer

import polars as pl
import torch

import identilens as idl
from helpers import dycks, zoo
from helpers.chats import answering
from helpers.killing import CHANGES, contents
from helpers.made_tasks import write_trec
from identilens.lab.dyck.settings import DyckSetting
from identilens.runs import workers
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

SHARED = {
    **CASES,
    "audit": lambda at, **run: idl.audit(model(), 4 * MANY, certain_rows=0, examples=1, **run),
}
"""Runs for several workers: more parts, so that some are open when someone dies."""


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
    """From now on parts that are run, here or by workers, are noted.

    ``tick`` is called before each change of the file system, and after parts were handed out, with which it was.
    """

    def told(change, note=lambda *_: None, before=lambda: None, after=lambda: None):
        def changed(*given, **options):
            before()
            note(*given)
            found = change(*given, **options)
            after()
            return found

        return changed

    for name in CHANGES:
        setattr(Path, name, told(getattr(Path, name), before=lambda: tick("change")))
    study.run = told(study.run, lambda _, part: ran.append(part))
    for kind in (workers.LocalWorker, workers.RayWorker):
        kind.submit = noting(kind.submit, ran, lambda _: tick("handed out"))


def noting(submit, ran, after):
    """A worker's method that hands out calls; parts are noted, and ``after`` is called with the worker."""

    def noted(worker, function, *given):
        future = submit(worker, function, *given)
        if function is workers.run_part:
            ran.append(given[0])
            after(worker)
        return future

    return noted


class Trial:
    """One study, run on an engine, in a folder that holds what it reads and all of its runs."""

    def __init__(self, name, at, made, dies):
        self.name, self.at, self.made, self.dies = name, at, made, dies
        self.study, self.case = study_named(name), (CASES if made is None else SHARED)[name]

    def undisturbed(self, folder, engine):
        """The points of a run, in order: what happened at each."""
        happened = []
        watched(self.study, [], happened.append)
        self.run(folder, engine)
        return happened

    def run(self, folder, engine, **run):
        if engine is not None:
            run["engine"] = engine()
        return self.case(self.at, out=folder, **run)

    def killed(self, folder, point, kill):
        """Run until the point, or to the end where it is a worker that dies."""
        left, ran = [point], []

        def tick(_):
            left[0] -= 1
            if left[0] == -1 and kill is not None:
                kill()

        watched(self.study, ran, tick)
        self.run(folder, self.made)
        return {"ran": ran}

    def resumed(self, folder):
        """What differs in the end, and the parts that were missing and that were run."""
        ran, missing = [], self.missing(folder)
        watched(self.study, ran, lambda _: None)
        self.run(folder, self.made, resume=True)
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


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Head:
    """The head node of a Ray cluster on this machine."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        # A token of this cluster's own, for its nodes and drivers, which are all started from here.
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        self.start()

    def start(self):
        ray = Path(sys.executable).with_name("ray")
        options = [
            "--num-cpus=2",
            "--port",
            str(self.port),
            "--include-dashboard=false",
            "--disable-usage-stats",
        ]
        command = [ray if ray.exists() else "ray", "start", "--head", "--block", *options]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, start_new_session=True, env=environment, **quiet)
        status = [command[0], "status", "--address", f"127.0.0.1:{self.port}"]
        for _ in range(60):
            if subprocess.run(status, check=False, **quiet).returncode == 0:
                return
            time.sleep(1)

    def kill(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def restart(self):
        self.kill()
        self.process.wait()
        time.sleep(2)
        self.start()


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


def engines(options, head):
    address = f"127.0.0.1:{head.port}" if head else None
    made = {
        "local": lambda: idl.Local(workers=2),
        "ray": lambda: idl.Ray(workers=2, address=address),
    }
    return made.get(options.engine)


def workers_run(trial, folder, points):
    """Run with workers that are killed, each soon after a part was handed to it, and say what differs."""
    ran, died = [], []

    def kill(process):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
            died.append(process)

    def process_of(worker):
        return worker.submit(os.getpid).result()

    for kind in (workers.LocalWorker, workers.RayWorker):
        submit = kind.submit

        def deadly(worker, function, *given, submit=submit):
            if function is not workers.run_part:
                return submit(worker, function, *given)
            ran.append(given[0])
            if len(ran) - 1 in points:
                Timer(random.Random(len(ran)).uniform(0, 0.02), kill, [process_of(worker)]).start()
            return submit(worker, function, *given)

        kind.submit = deadly
    trial.run(folder, trial.made)
    again = sorted((Counter(ran) - Counter(set(ran))).elements())
    return {"ran": again, "differs": trial.differs(folder), "died": len(died)}


def row_of(trial, folder, points, head):
    """What becomes of a run that is killed at a point, or of whose workers one is killed at each of several points."""
    if trial.dies == "worker":
        return forked(workers_run, trial, folder, points) or {"error": "killed"}
    (point,) = points
    ended = forked(trial.killed, folder, point, head.kill if trial.dies == "head" else die)
    if trial.dies == "head":
        head.restart()
    return {
        "killed": ended is None or "error" in ended,
        **(forked(trial.resumed, folder) or {"error": "killed"}),
    }


def undisturbed(trial):
    """What happens at each point of a run."""
    trial.parts = forked(prepare, trial.name, trial.at, trial.case)
    if isinstance(trial.parts, int) and trial.dies == "worker":
        return ["handed out"] * trial.parts
    happened = forked(trial.undisturbed, trial.at / "counted", trial.made)
    for counted in (trial.parts, happened):
        if not isinstance(counted, int | list):
            sys.exit(counted["error"] if counted else "the undisturbed run took too long")
    return happened


def drawn_points(drawn, happened, options):
    """Points at which someone dies."""
    places = {
        what: [at for at, one in enumerate(happened) if one == what]
        for what in ("handed out", "change")
    }
    wanted = options.points // 2 if options.dies == "driver" else options.points
    first = drawn.sample(places["handed out"], min(len(places["handed out"]), wanted))
    more = (
        0 if options.dies != "driver" else min(len(places["change"]), options.points - len(first))
    )
    return sorted(first + drawn.sample(places["change"], more))


def tried(options):
    """The points of a study, by the options of the command line."""
    os.dup2(2, 1)  # what studies print is no answer
    drawn = random.Random(f"{options.study} {options.engine} {options.dies}")
    with tempfile.TemporaryDirectory() as place, ExitStack() as ends:
        # Drivers share a cluster, which outlives them; a worker reads in its environment when it is to die.
        head = Head() if options.engine == "ray" and options.dies != "worker" else None
        if head:
            ends.callback(head.kill)
        at = Path(place).resolve()
        trial = Trial(options.study, at, engines(options, head), options.dies)
        happened = undisturbed(trial)
        points = drawn_points(drawn, happened, options)
        rows = []
        runs = ceil(len(points) / options.together)
        for run in range(runs):
            row = row_of(trial, at / f"run{run}", points[run::runs], head)
            rows.append({"points": points[run::runs], **row})
            print(rows[-1], file=sys.stderr, flush=True)
    return {
        "study": options.study,
        "happened": len(happened),
        "parts": trial.parts,
        "points": rows,
    }


def main():
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("study", choices=CASES)
    words.add_argument("--points", type=int, default=20)
    words.add_argument("--engine", choices=["local", "ray"])
    words.add_argument("--dies", choices=["driver", "worker", "head"], default="driver")
    words.add_argument("--together", type=int, default=1, help="workers that die in one run")
    torch.set_num_threads(1)
    lines = [json.dumps(sys.argv[1:])] if sys.argv[1:] else sys.stdin
    for line in lines:
        found = forked(tried, words.parse_args(json.loads(line)), patience=550)
        print(json.dumps(found or {"error": "it took too long"}), flush=True)


if __name__ == "__main__":
    main()
