"""Parts of a run as tasks of a Ray cluster: a task computes a part and returns it; the driver writes the folder."""

import logging
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from identilens.errors import IdentilensError, InputError
from identilens.runs.files import LOCK
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Record, differences, provenance, version_changes
from identilens.runs.settings import Settings

_QUIET = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
_WAITING = 2
"""Tasks for each core of the cluster that are handed out at the same time."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """The study whose parts are computed.

    Attributes:
        study: Class of the study.
        inputs: Its inputs, or references with a method ``restored`` that returns them.
        settings: Its settings.
        record: Provenance of the run.
        gpus: Number of GPUs that a task needs.
    """

    study: type
    inputs: Sequence[Any]
    settings: Settings
    record: Record
    gpus: int = 0


@dataclass(frozen=True)
class PartResult:
    """The content of a part, and the files that it wrote into the run's folder; or the error if it failed.

    Attributes:
        content: The part, as `Output.content` returns it.
        files: Contents of the files, by their paths in the folder.
        error: Why there is no content.
    """

    content: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    error: str = ""


_LOADED: dict[str, tuple[Any, Record]] = {}
"""The study that this process has loaded for its tasks, and the provenance of its run, by the job's number."""


@torch.autocast("cuda", enabled=False)
@torch.autocast("cpu", enabled=False)
def run_part(study: Any, record: Record, part: int) -> PartResult:
    """Return a part of a study, which has an empty folder meanwhile."""
    with tempfile.TemporaryDirectory(prefix="identilens-") as temporary:
        folder = Path(temporary)
        study.begin(RunFolder(folder, record))
        content = study.run(part).content()
        files = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file() and file.name != LOCK
        }
        return PartResult(content, files)


def load_study(job: Job) -> Any:
    """Return the study of a job.

    Raises:
        InputError: If it has other inputs or libraries here than in the driver.
    """
    inputs = [item.restored() if hasattr(item, "restored") else item for item in job.inputs]
    study = job.study(*inputs, settings=job.settings)
    record = provenance(study.name, study.identity(), study.settings.recorded())
    differs = differences(job.record, record) or version_changes(job.record, record)
    if differs:
        raise InputError(
            f"{platform.node()} has other inputs than the run was started with: {differs}. Save a model that was "
            "changed in memory (save_pretrained), and load it from there."
        )
    return study


def run_parts(job: Job, parts: Sequence[int], address: str) -> Iterator[tuple[int, PartResult]]:
    """Yield each part as it is finished, or its error; a part that fails is tried once more.

    Args:
        job: The study.
        parts: Numbers of the parts.
        address: Address of a running cluster, "auto" for that of this machine, or "local" for a new one on its cores.

    Raises:
        InputError: If ray is not installed, or the cluster cannot be reached.
    """
    try:
        import ray
    except ImportError as error:
        raise InputError("ray=... needs: pip install 'identilens[ray]'.") from error
    started = not ray.is_initialized()
    if started:
        _connect(ray, address)
    try:
        task = ray.remote(num_cpus=1, num_gpus=job.gpus, max_retries=1, retry_exceptions=True)(
            _task
        )
        shared = [ray.put(job)]
        most = _WAITING * max(1, int(ray.cluster_resources().get("CPU", 1)))
        todo, running = iter(parts), {}
        while True:
            for part in islice(todo, most - len(running)):
                running[task.remote(shared, part)] = part
            if not running:
                break
            (done,), _ = ray.wait(list(running), num_returns=1)
            yield running.pop(done), _result(ray, done)
    finally:
        if started:
            ray.shutdown()


def _task(shared: Sequence[Any], part: int) -> PartResult:
    """Compute a part in a process of the cluster, which fetches and loads a job once."""
    import ray

    number = shared[0].hex()
    if number not in _LOADED:
        _LOADED.clear()
        job: Any = ray.get(shared[0])
        _LOADED[number] = load_study(job), job.record
    return run_part(*_LOADED[number], part)


def _result(ray: Any, done: Any) -> PartResult:
    """Return what a task returned, or why it failed."""
    try:
        return ray.get(done)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        kind = "" if isinstance(cause, IdentilensError) else f"{type(cause).__name__}: "
        return PartResult(error=f"{kind}{cause}".splitlines()[0])


def _connect(ray: Any, address: str) -> None:
    """Connect to a cluster, or start one with the cores of this machine."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        ray.init(address, **_QUIET)
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0]
        raise InputError(f"the Ray cluster {address} cannot be reached ({first}).") from error
