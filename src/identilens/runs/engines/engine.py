"""What an engine is: something that starts workers, hands parts to them and hears from them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from identilens.runs.engines.worker import Job, Outcome


@dataclass(frozen=True)
class Ready:
    """A worker has made its study."""

    worker: int


@dataclass(frozen=True)
class Done:
    """A worker has worked on some parts."""

    worker: int
    outcomes: Sequence[Outcome]


@dataclass(frozen=True)
class Lost:
    """A worker is no more, killed or out of memory."""

    worker: int
    why: str


Event = Ready | Done | Lost


class Pool(ABC):
    """Workers of one run. A context: on leaving it they are ended."""

    @abstractmethod
    def start(self, worker: int) -> None:
        """Start a worker under a number of its own."""

    @abstractmethod
    def submit(self, worker: int, parts: Sequence[int]) -> None:
        """Hand parts to a worker."""

    @abstractmethod
    def events(self) -> Sequence[Event]:
        """Wait until something is heard, and return it.

        Raises:
            IdentilensError: If a worker could not make its study.
        """

    @abstractmethod
    def close(self) -> None:
        """End all workers."""

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Engine(ABC):
    """Who computes the parts of a run.

    Attributes:
        workers: How many work at the same time.
    """

    workers: int

    @abstractmethod
    def pool(self, job: Job) -> Pool:
        """Return the pool of workers for a run; none is started yet."""
