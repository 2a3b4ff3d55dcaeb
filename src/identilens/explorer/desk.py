"""Who waits for what: one worker a model, jobs that tell what they have done and can be given up."""

import asyncio
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.overrides import TorchFunctionMode

from identilens.errors import IdentilensError, InputError
from identilens.explorer.work import Check, Measured, Tell
from identilens.models.lens import Lens

SESSIONS = 16
"""Texts that are held at a time; the one not used for longest is let go."""

_POLL = 0.1

Job = Callable[[Check, Tell], Mapping[str, Any] | None]


class GivenUpError(Exception):
    """The one who asked has left."""


class Stoppable(TorchFunctionMode):
    """Asks before every operation on tensors whether the work goes on, so that it ends wherever it is."""

    def __init__(self, check: Check) -> None:
        super().__init__()
        self._check = check

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._check()
        return func(*args, **(kwargs or {}))


class Desk:
    """The models of an explorer, a worker for each, and the texts that its pages look at.

    A text is held under a name that only the page that measured it was told.
    """

    def __init__(self, lenses: Mapping[str, Lens]) -> None:
        self.lenses = lenses
        self._workers = {
            name: ThreadPoolExecutor(1, thread_name_prefix=f"explorer-{name}") for name in lenses
        }
        self._held: OrderedDict[str, tuple[str, Measured]] = OrderedDict()
        self._lock = threading.Lock()

    def lens(self, model: str) -> Lens:
        """Return a model by its name.

        Raises:
            InputError: If it is not one that the explorer was started with.
        """
        if model not in self.lenses:
            raise InputError(
                f"there is no model {model!r}; this explorer was started with {', '.join(self.lenses)}."
            )
        return self.lenses[model]

    def keep(self, model: str, measured: Measured) -> str:
        """Hold a text and return its name."""
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._held[name] = model, measured
            while len(self._held) > SESSIONS:
                self._held.popitem(last=False)
        return name

    def held(self, name: str) -> tuple[str, Measured]:
        """Return a text and its model.

        Raises:
            InputError: If it is no longer held.
        """
        with self._lock:
            if name not in self._held:
                raise InputError("this text is no longer held; measure it again.")
            self._held.move_to_end(name)
            return self._held[name]

    async def steps(
        self, model: str, job: Job, gone: Callable[[], Any]
    ) -> AsyncIterator[Mapping[str, Any]]:
        """Yield what a job tells, and its result, as the model's worker comes to it; stop it once ``gone`` says so."""
        loop, told, stopped = asyncio.get_running_loop(), asyncio.Queue(), threading.Event()

        def check() -> None:
            if stopped.is_set():
                raise GivenUpError

        def tell(step: Mapping[str, Any]) -> None:
            check()
            loop.call_soon_threadsafe(told.put_nowait, step)

        def run() -> None:
            try:
                check()
                with Stoppable(check):
                    last = job(check, tell) or {}
            except GivenUpError:
                return
            except IdentilensError as error:
                last = {"error": str(error)}
            except Exception as error:  # the page must hear of it, and the worker must live on
                last = {"error": f"{type(error).__name__}: {error}"}
            loop.call_soon_threadsafe(told.put_nowait, {**last, "done": True})

        self._workers[model].submit(run)
        try:
            while True:
                try:
                    step = await asyncio.wait_for(told.get(), _POLL)
                except TimeoutError:
                    if await gone():
                        return
                    continue
                yield step
                if step.get("done"):
                    return
        finally:
            stopped.set()

    def close(self) -> None:
        """Let the workers go."""
        for worker in self._workers.values():
            worker.shutdown(wait=False, cancel_futures=True)
