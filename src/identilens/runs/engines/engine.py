"""The interface of an engine: it starts workers, hands parts to them and reports events."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from identilens.runs.engines.worker import Job, Outcome


@dataclass(frozen=True)
class Ready:
    """A worker has loaded its study."""

    worker: int


@dataclass(frozen=True)
class Done:
    """A worker has finished some parts."""

    worker: int
    outcomes: Sequence[Outcome]


@dataclass(frozen=True)
class Lost:
    """A worker has died: killed, or out of memory."""

    worker: int
    why: str


Event = Ready | Done | Lost


class Pool(ABC):
    """Workers of one run. A context manager: on exit the workers are ended."""

    @abstractmethod
    def start(self, worker: int) -> None:
        """Start a worker with a new number."""

    @abstractmethod
    def submit(self, worker: int, parts: Sequence[int]) -> None:
        """Hand parts to a worker."""

    @abstractmethod
    def events(self) -> Sequence[Event]:
        """Wait for events, and return them.

        Raises:
            IdentilensError: If a worker could not load its study.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine(ABC):
    """Computes the parts of a run on workers.

    Attributes:
        workers: Number of workers.
    """

    workers: int

    @abstractmethod
    def pool(self, job: Job) -> Pool:
        """Return the pool of workers for a run; no worker is started yet."""
