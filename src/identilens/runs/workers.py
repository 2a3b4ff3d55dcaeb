"""Workers that compute the parts of a run: processes of this machine, or actors of a Ray cluster.

A worker loads the study and returns the content of each part; the process that started the run writes it.
"""

import logging
import multiprocessing
import os
import platform
import signal
import sys
import tempfile
import traceback
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import torch

from identilens.errors import IdentilensError, InputError, SettingError
from identilens.runs.bucket import local_folder
from identilens.runs.files import Manifest, recording
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Record, differences, provenance, version_changes
from identilens.runs.settings import Settings

_DEATHS = 3
"""Number of workers that a part may kill, and that may die in a row while they load the study."""

_WITH_TOKENS = (2, 59)
"""First version of Ray that asks for a token on a cluster that it starts."""


_RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Actors without GPUs must see the same devices as their driver.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # By default Ray runs actors at nice 15, which costs more than all else that it adds to a part.
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True)
class Job:
    """The study that workers compute.

    Attributes:
        study: Class of the study.
        inputs: Its inputs, or replacements with a method ``restored`` that takes the shared folder and returns them.
        settings: Its settings.
        record: Provenance of the run.
        location: Folder or URL of the run.
        shared: Folder with the files that the replacements need.
    """

    study: type
    inputs: tuple[Any, ...]
    settings: Settings
    record: Record
    location: str
    shared: Path


@dataclass(frozen=True)
class PartResult:
    """The content of a part, and the names of further files that it has written; or the error if it failed."""

    content: bytes = b""
    names: Sequence[str] = ()
    error: str = ""


_LOADED: list[tuple[Any, Manifest]] = []
"""The study of this process, if it is a worker, and the manifest of its run."""


def load_study(
    job: Job,
    files: Mapping[str, bytes] | None = None,
    threads: int | None = None,
    gpu: int | None = None,
) -> IdentilensError | None:
    """Load the study of a job in this process, and return the error if that is not possible.

    Args:
        job: The job.
        files: Contents of the shared files, on a machine that may not see their folder.
        threads: Number of threads of this process, unless its environment names one.
        gpu: The GPU that this process sees.
    """
    if threads is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)
    if gpu is not None:  # CUDA reads it when it is first used
        os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    if (parent := multiprocessing.parent_process()) is not None:
        # Ctrl-C ends the process that started the run, which then ends its workers; so does its death.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
    try:
        with tempfile.TemporaryDirectory() as folder:
            shared = job.shared if files is None else Path(folder)
            for name, content in (files or {}).items():
                file = shared / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
            _LOADED[:] = [_loaded(job, shared)]
    except IdentilensError as error:
        return error
    except Exception:  # of any kind: it ends the run with its message
        return InputError(
            f"a worker on {platform.node()} cannot be made:\n{traceback.format_exc(limit=-3)}"
        )
    return None


def _loaded(job: Job, shared: Path) -> tuple[Any, Manifest]:
    """Return the study of a job, ready for its first part, and the manifest of the run."""
    inputs = tuple(
        item.restored(shared) if hasattr(item, "restored") else item for item in job.inputs
    )
    study = job.study(*inputs, settings=job.settings)
    study.inputs = inputs
    record = provenance(study.name, study.identity(), study.settings.recorded())
    where = f"a worker on {platform.node()} has other inputs than the run was started with"
    if record["fingerprint"] != job.record["fingerprint"]:
        raise InputError(
            f"{where}: {differences(job.record, record)}. A model changed in memory is to be saved "
            "(save_pretrained) and loaded from there."
        )
    if changes := version_changes(job.record, record):
        raise InputError(f"{where}: {changes}.")
    folder = local_folder(job.location)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = Manifest(folder, uploads=False)
    study.begin(RunFolder(folder, job.record, manifest))
    return study, manifest


@torch.autocast("cuda", enabled=False)
@torch.autocast("cpu", enabled=False)
def run_part(part: int) -> PartResult:
    """Return a part of the study that this process has loaded, or why it failed."""
    study, manifest = _LOADED[0]
    try:
        before = set(manifest.names)
        with recording(manifest):
            content = study.run(part).content()
        return PartResult(content, [name for name in manifest.names if name not in before])
    except Exception as error:  # of any kind: the run continues with other parts
        words = str(error) if isinstance(error, IdentilensError) else traceback.format_exc(limit=-3)
        return PartResult(error=words or repr(error))


class Engine(ABC):
    """Starts the workers of a run.

    Attributes:
        workers: Number of workers.
    """

    workers: int

    @abstractmethod
    def opened(
        self, job: Job
    ) -> AbstractContextManager[Callable[[int], "LocalWorker | RayWorker"]]:
        """Return a context that yields a function, which starts a worker with a number."""


@dataclass(frozen=True)
class Local(Engine):
    """Processes of this machine, which share its cores and take its GPUs in turn.

    Attributes:
        workers: Number of processes.

    Examples:
        >>> import identilens as idl
        >>> engine = idl.Local(workers=2)  # idl.audit(lens, texts, out="run", engine=engine)
        >>> engine
        Local(workers=2)
    """

    workers: int = 2

    def __post_init__(self) -> None:
        _check_workers(self.workers)

    @contextmanager
    def opened(self, job: Job) -> Iterator[Callable[[int], "LocalWorker"]]:
        """Yield the function that starts a process."""
        threads, gpus = max(1, (os.cpu_count() or 1) // self.workers), torch.cuda.device_count()
        yield lambda number: LocalWorker(job, threads, number % gpus if gpus > 1 else None)


class LocalWorker:
    """A new Python process that computes parts, one after the other.

    Attributes:
        loading: Becomes the result of `load_study`.
    """

    def __init__(self, job: Job, threads: int, gpu: int | None) -> None:
        main, others = sys.modules["__main__"], set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        # The new process would import the user's script, which would start the run once more.
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            self.loading = self._last = self._pool.submit(load_study, job, None, threads, gpu)
        finally:
            sys.modules["__main__"] = main
        self._processes = set(multiprocessing.active_children()) - others

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in the process; the future has an exception if the process dies."""
        self._last = self._pool.submit(function, *arguments)
        return self._last

    def close(self) -> None:
        """End the process, at once if it is at work."""
        if not self._last.done():
            for process in self._processes:
                process.kill()
        self._pool.shutdown()


@dataclass(frozen=True)
class Ray(Engine):
    """Actors of a Ray cluster.

    Attributes:
        address: Address of a running cluster; "auto" for that of this machine. Default: a new one, which only this
            machine can reach, and only with the token of its user.
        workers: Number of actors.
        gpus_per_worker: GPUs of each actor, such as 1 or 0.5.

    Examples:
        >>> import identilens as idl
        >>> engine = idl.Ray(workers=8, gpus_per_worker=1.0)  # idl.audit(lens, texts, out="run", engine=engine)
        >>> engine
        Ray(address=None, workers=8, gpus_per_worker=1.0)
    """

    address: str | None = None
    workers: int = 2
    gpus_per_worker: float = 0

    def __post_init__(self) -> None:
        _check_workers(self.workers)
        if not isinstance(self.gpus_per_worker, int | float) or self.gpus_per_worker < 0:
            raise SettingError("gpus_per_worker", "of at least 0", self.gpus_per_worker)

    @contextmanager
    def opened(self, job: Job) -> Iterator[Callable[[int], "RayWorker"]]:
        """Yield the function that starts an actor; a cluster that was started for the run ends with the context.

        Raises:
            InputError: If ray is not installed, or the cluster cannot be reached.
        """
        for name, value in _RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        try:
            import ray
        except ImportError as error:
            raise InputError("engine ray needs: pip install 'identilens[ray]'.") from error
        if tuple(map(int, ray.__version__.split(".")[:2])) < _WITH_TOKENS:
            raise InputError(
                f"ray {ray.__version__} lets anyone run code. Run: pip install 'identilens[ray]' --upgrade."
            )
        started = not ray.is_initialized()
        if started:
            self._connect(ray)
        try:
            shared = [file for file in job.shared.rglob("*") if file.is_file()]
            files = {file.relative_to(job.shared).as_posix(): file.read_bytes() for file in shared}
            # Stored once for all actors.
            inputs = ray.put(job), ray.put(files)
            actor = ray.remote(num_cpus=1, num_gpus=float(self.gpus_per_worker), max_restarts=0)(
                _Actor
            )
            yield lambda _: RayWorker(ray, actor.remote(), inputs)
        finally:
            if started:
                ray.shutdown()

    def _connect(self, ray: Any) -> None:
        """Connect to the cluster, or start one that listens on the loopback address alone and asks for a token.

        Ray replaces the loopback address by that of the machine, and then listens on all of its addresses, unless it
        is told that there are no further machines: the switch is for Windows and macOS, but works everywhere.
        """
        quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        constants: Any = import_module("ray._private.ray_constants")
        before = constants.ENABLE_RAY_CLUSTER
        try:
            if self.address:
                ray.init(self.address, **quiet)
            else:
                constants.ENABLE_RAY_CLUSTER = False
                cores = max(self.workers, os.cpu_count() or 1)
                ray.init("local", **quiet, num_cpus=cores, _node_ip_address="127.0.0.1")
        except (OSError, ValueError, RuntimeError) as error:
            first = str(error).strip().splitlines()[0]
            raise InputError(
                f"the Ray cluster {self.address} cannot be reached ({first})."
            ) from error
        finally:
            constants.ENABLE_RAY_CLUSTER = before


class _Actor:
    """Calls functions in a process of a cluster."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)


class RayWorker:
    """An actor with one core; it has what a `LocalWorker` has."""

    def __init__(self, ray: Any, actor: Any, inputs: Sequence[Any]) -> None:
        self._ray, self._actor = ray, actor
        self.loading = self.submit(load_study, *inputs)

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in the actor."""
        return self._actor.call.remote(function, *arguments).future()

    def close(self) -> None:
        """End the actor at once."""
        self._ray.kill(self._actor)


def _check_workers(workers: Any) -> None:
    if not isinstance(workers, int) or workers < 1:
        raise SettingError("workers", "of at least 1", workers)


def compute_parts(
    job: Job, engine: Engine, parts: Sequence[int], finished: Callable[[int, PartResult, str], None]
) -> dict[int, str]:
    """Compute parts on workers, and return the errors of those that failed.

    A worker that dies is replaced, and its part is tried again.

    Args:
        job: The job.
        engine: Starts the workers.
        parts: Numbers of the parts.
        finished: Called with each part, its result, and the state of the workers in words.

    Raises:
        InputError: If a worker cannot load the study.
    """
    todo, failed = deque(parts), {}
    deaths: Counter[int | None] = Counter()
    workers: list[LocalWorker | RayWorker] = []
    running: dict[Future[Any], tuple[LocalWorker | RayWorker, int | None]] = {}
    with engine.opened(job) as start:

        def launch() -> None:
            workers.append(start(len(workers)))
            running[workers[-1].loading] = workers[-1], None

        try:
            for _ in range(min(engine.workers, len(todo))):
                launch()
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    worker, part = running.pop(future)
                    if (death := future.exception()) is not None:
                        worker.close()
                        deaths[part] += 1
                        why = f"its worker died, killed or out of memory ({str(death).strip().splitlines()[0]})"
                        if part is None and deaths[None] == _DEATHS:
                            raise InputError(f"workers cannot start: {why}.")
                        if part is not None and deaths[part] < _DEATHS:
                            todo.appendleft(part)
                        elif part is not None:
                            failed[part] = why
                        if todo:
                            launch()
                        continue
                    result = future.result()
                    if isinstance(result, IdentilensError):
                        raise result
                    deaths[None] = 0
                    if todo:
                        following = todo.popleft()
                        running[worker.submit(run_part, following)] = worker, following
                    if part is None:
                        continue
                    if result.error:
                        failed[part] = result.error
                    else:
                        lost = deaths.total()
                        finished(
                            part,
                            result,
                            f"{engine.workers} workers{f', {lost} lost' if lost else ''}",
                        )
        finally:
            for worker in workers:
                worker.close()
    return failed
