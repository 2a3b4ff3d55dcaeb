"""Many training runs, one row each: tasks by kind of heads by key size by seed."""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import polars as pl

from identilens.encoder.configuration import Heads
from identilens.encoder.published import D_K, published_accuracy
from identilens.encoder.splits import Splits, read_splits
from identilens.encoder.tasks import task_named
from identilens.encoder.training import Progress, TrainingSettings, train
from identilens.errors import InputError
from identilens.results.encoder_sweep import ANALYSIS, RUN_COLUMNS, EncoderSweep
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance


def sweep(
    tasks: Sequence[str],
    out: str | Path,
    *,
    heads: Sequence[Heads] = ("concat", "add"),
    d_k: Sequence[int] = D_K,
    seeds: Sequence[int] = (0,),
    data: str | Path | None = None,
    settings: TrainingSettings | None = None,
    keep_models: bool = False,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncoderSweep:
    """Return one row a run of the grid, in the form of Table 1 of Bhardwaj et al. 2021.

    Args:
        tasks: Names of tasks.
        out: Folder to fill; each run has a folder of its own under ``runs``.
        heads: ``concat``, ``add`` or both.
        d_k: Sizes of queries and keys.
        seeds: One run each; Table 1 has one.
        data: Folder of local files; the hub when None.
        settings: What all runs share.
        keep_models: Keep each run's model beside its metrics.
        resume: Go on with an interrupted sweep in ``out``, inside the run that was cut off.
        overwrite: Drop the sweep that ``out`` holds.
        progress: Called with (runs done, runs in all, what the run under way has reached).

    Raises:
        InputError: For an empty grid, or a task, file, row or setting that cannot be used.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    shared = settings or TrainingSettings()
    grid = [
        (task, replace(shared, heads=kind, d_k=size, seed=seed))
        for task in dict.fromkeys(task_named(task).name for task in tasks)
        for kind in dict.fromkeys(heads)
        for size in sorted(set(d_k))
        for seed in dict.fromkeys(seeds)
    ]
    if not grid:
        raise InputError("a sweep needs at least one task, kind of heads, d_k and seed.")
    named = {
        "tasks": tasks, "heads": heads, "d_k": d_k, "seeds": seeds, "shared": asdict(shared)
    }  # fmt: skip
    record = provenance(ANALYSIS, model={"name": ", ".join(tasks)}, texts=[str(data or "hub")], settings=named)
    runs = Path(out) / "runs"
    if overwrite:
        shutil.rmtree(runs, ignore_errors=True)

    @lru_cache(maxsize=1)
    def splits(task: str, seed: int) -> Splits:
        return read_splits(task_named(task), None if data is None else Path(data), seed=seed, limit=shared.limit)

    def run(part: int) -> dict[str, pl.DataFrame]:
        task, chosen = grid[part]
        name = f"{task}, {chosen.heads}, d_k = {chosen.d_k}, seed {chosen.seed}"

        def report(done: int, steps: int | None, note: str) -> None:
            if progress:
                progress(part, len(grid), f"{name}: step {done} of {steps}; {note}".rstrip("; "))

        folder = runs / f"{task}-{chosen.heads}-dk{chosen.d_k}-seed{chosen.seed}"
        found = train(
            task, folder, settings=chosen, splits=splits(task, chosen.seed), resume=folder.exists(), progress=report
        )
        if not keep_models:
            shutil.rmtree(found.model_path, ignore_errors=True)
        metrics = {**found.metrics, "published": published_accuracy(task, chosen.heads, chosen.d_k)}
        return {"table": pl.DataFrame([metrics], schema=RUN_COLUMNS)}

    tables = run_parts(
        record, [1] * len(grid), run, {"table": whole}, out=out, resume=resume, overwrite=overwrite,
        progress=(lambda done, total: progress(done, total, "")) if progress else None,
    )  # fmt: skip
    return EncoderSweep(tables["table"], record)
