"""Parts of a run as tasks of a Ray cluster: a task computes a part and returns it; the driver writes the folder."""

import logging
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from identilens.errors import CheckFailedError, IdentilensError, InputError, first_line
from identilens.runs.files import files_of
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Record, differences, provenance, version_changes

_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
_WAITING = 2
"""Tasks for each core of the cluster that are handed out at the same time."""

Job = tuple[Callable[..., Any], Sequence[Any], Any, Record]
"""The class of a study, its inputs (or references with a method ``restored``), its settings, provenance of the run."""

_LOADED: dict[str, tuple[Any, Record]] = {}
"""The study that this process has loaded for its tasks, and the provenance of its run, by the job's number."""


@torch.autocast("cuda", enabled=False)
@torch.autocast("cpu", enabled=False)
def run_part(study: Any, record: Record, part: int) -> tuple[bytes, Mapping[str, bytes]]:
    """Return the content of a part of a study, and of the files that it wrote into its folder by their paths there."""
    with tempfile.TemporaryDirectory(prefix="identilens-") as temporary:
        folder = Path(temporary)
        study.begin(RunFolder(folder, record))
        return study.run(part).content(), files_of(folder)


def load_study(job: Job) -> Any:
    """Return the study of a job.

    Raises:
        InputError: If it has other inputs or libraries here than in the driver.
    """
    kind, inputs, settings, before = job
    loaded = [item.restored() if hasattr(item, "restored") else item for item in inputs]
    study = kind(*loaded, settings=settings)
    record = provenance(study.name, study.identity(), settings.recorded())
    differs = differences(before, record) or version_changes(before, record)
    if differs:
        raise InputError(
            f"{platform.node()} has other inputs than the run was started with: {differs}. Save a model that was "
            "changed in memory (save_pretrained), and load it from there."
        )
    return study


def run_on_cluster(
    study: Any,
    folder: RunFolder,
    parts: Sequence[int],
    count: Callable[[int], None],
    address: str,
) -> None:
    """Write each part of a run as it is finished; a part that fails is tried once more.

    Args:
        study: The study.
        folder: Folder of the run.
        parts: Numbers of the parts.
        count: Called with each part that is finished or has failed.
        address: Address of a running cluster, "auto" for that of this machine, or "local" for a new one on its cores.

    Raises:
        InputError: If ray is not installed, or the cluster cannot be reached.
        CheckFailedError: If parts failed; all others are written.
    """
    inputs = study.sent()
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise InputError("ray=... needs: pip install 'identilens[ray]'.") from error
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    failed = []
    try:
        gpus = max((getattr(item, "gpus", 0) for item in inputs), default=0)
        needs = {"num_cpus": 1, "num_gpus": gpus, "max_retries": 1, "retry_exceptions": True}
        task = ray.remote(**needs)(_task)
        shared = [ray.put((type(study), inputs, study.settings, folder.record))]
        most = _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
        todo, running = iter(parts), {}
        while True:
            for part in islice(todo, most - len(running)):
                running[task.remote(shared, part)] = part
            if not running:
                break
            (done,), _ = ray.wait(list(running), num_returns=1)
            part = running.pop(done)
            try:
                folder.write_part(part, *ray.get(done))
            except ray.exceptions.RayError as error:
                failed.append(f"part {part}: {_reason(error)}")
            count(part)
    finally:
        if started:
            ray.shutdown()
    if failed:
        raise CheckFailedError(
            f"{len(failed)} of {len(study.sizes())} parts failed, each of them twice, "
            f"among them {failed[0]}. All others are saved: resume=True computes those that failed."
        )


def _task(shared: Sequence[Any], part: int) -> tuple[bytes, Mapping[str, bytes]]:
    """Compute a part in a process of the cluster, which fetches and loads a job once."""
    import ray

    number = shared[0].hex()
    if number not in _LOADED:
        _LOADED.clear()
        job: Any = ray.get(shared[0])
        _LOADED[number] = load_study(job), job[-1]
    return run_part(*_LOADED[number], part)


def _reason(error: Exception) -> str:
    """Return why a task failed, in a line."""
    cause = getattr(error, "cause", None) or error
    kind = "" if isinstance(cause, IdentilensError) else f"{type(cause).__name__}: "
    return f"{kind}{cause}".splitlines()[0]


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or start one with the cores of this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, **_QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        why = first_line(error)
        raise InputError(f"the Ray cluster {address} cannot be reached ({why}).") from error
