"""Workers that are actors of a Ray cluster: processes on one or several machines that share the run's folder."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from identilens.errors import IdentilensError, InputError, SettingError
from identilens.runs.engines.engine import Done, Engine, Event, Lost, Pool, Ready
from identilens.runs.engines.worker import Job, Outcome, made_worker

_LOOPBACK = "127.0.0.1"
_WITH_TOKENS = (2, 59)
"""First version of Ray that asks for a token on a cluster that it starts."""


@dataclass(frozen=True)
class Ray(Engine):
    """Actors of a Ray cluster; the run's folder must have the same path on all of its machines, or be a URL.

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
        if not isinstance(self.workers, int) or self.workers < 1:
            raise SettingError("workers", "of at least 1", self.workers)
        if not isinstance(self.gpus_per_worker, int | float) or self.gpus_per_worker < 0:
            raise SettingError("gpus_per_worker", "of at least 0", self.gpus_per_worker)

    def pool(self, job: Job) -> "RayPool":
        """Return the pool of actors for a run.

        Raises:
            InputError: If ray is not installed, or the cluster cannot be reached.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        # Actors without GPUs must see the same devices as their driver.
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # By default Ray runs actors at nice 15, which costs more than all else that it adds to a part.
        os.environ.setdefault("RAY_worker_niceness", "0")
        try:
            import ray
        except ImportError as error:
            raise InputError("engine ray needs: pip install 'identilens[ray]'.") from error
        if tuple(map(int, ray.__version__.split(".")[:2])) < _WITH_TOKENS:
            raise InputError(f"ray {ray.__version__} lets anyone run code. Run: pip install 'identilens[ray]' --upgrade.")
        started = not ray.is_initialized()
        if started:
            alone: dict[str, Any] = {"num_cpus": max(self.workers, os.cpu_count() or 1), "_node_ip_address": _LOOPBACK}
            quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
            try:
                if self.address:
                    ray.init(self.address, **quiet)
                else:
                    with _on_loopback():
                        ray.init("local", **quiet, **alone)
            except (OSError, ValueError, RuntimeError) as error:
                first = str(error).strip().splitlines()[0]
                raise InputError(f"the Ray cluster {self.address} cannot be reached ({first}).") from error
        return RayPool(ray, job, float(self.gpus_per_worker), started)


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Let a cluster that starts in this context listen on the loopback address alone; it asks for a token by itself.

    Ray replaces the loopback address by that of the machine, and then listens on all of its addresses, unless it was
    told that there are no further machines: the switch is for Windows and macOS, but works everywhere.
    """
    constants: Any = import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


class _Actor:
    """A worker that is created by its first call, so that errors reach the driver as they are."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def ready(self) -> IdentilensError | None:
        self._worker = made_worker(self._job)
        return self._worker if isinstance(self._worker, IdentilensError) else None

    def run(self, parts: Sequence[int]) -> Sequence[Outcome]:
        return self._worker.run(parts)  # pyright: ignore[reportAttributeAccessIssue] asked for only when it is ready


class RayPool(Pool):
    """Each worker is an actor with one core; the job is stored once for all of them."""

    def __init__(self, ray: Any, job: Job, gpus: float, started: bool) -> None:
        self._ray, self._started = ray, started
        self._job = ray.put(job)
        self._kind = ray.remote(num_cpus=1, num_gpus=gpus, max_restarts=0)(_Actor)
        self._actors: dict[int, Any] = {}
        self._futures: dict[Any, tuple[int, bool]] = {}

    def start(self, worker: int) -> None:
        """Start an actor."""
        self._actors[worker] = self._kind.remote(self._job)
        self._futures[self._actors[worker].ready.remote()] = worker, True

    def submit(self, worker: int, parts: Sequence[int]) -> None:
        """Hand parts to an actor."""
        self._futures[self._actors[worker].run.remote(list(parts))] = worker, False

    def events(self) -> Sequence[Event]:
        """Wait until an actor has finished a call, or has died."""
        heard, _ = self._ray.wait(list(self._futures), num_returns=1)
        return [self._heard(one) for one in heard]

    def close(self) -> None:
        """End all actors, and the cluster if it was started for them."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._futures.clear()
        if self._started:
            self._ray.shutdown()

    def _heard(self, future: Any) -> Event:
        worker, starts = self._futures.pop(future)
        try:
            content = self._ray.get(future)
        except self._ray.exceptions.RayActorError as error:
            self._actors.pop(worker)
            return Lost(worker, str(error).strip().splitlines()[0])
        if isinstance(content, IdentilensError):
            raise content
        return Ready(worker) if starts else Done(worker, content)
