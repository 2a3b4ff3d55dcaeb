"""Starting the explorer: models are loaded, a token is drawn, and the address is printed."""

import asyncio
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from identilens.errors import InputError
from identilens.explorer.app import explorer_app
from identilens.explorer.desk import Desk
from identilens.explorer.runs import Runs
from identilens.models.lens import Lens

HOST = "127.0.0.1"
PATIENCE = 10.0
"""Seconds in which the head of a request must arrive."""

MOST_CONNECTIONS = 200


class ImpatientProtocol(H11Protocol):
    """Closes a connection on which no whole head of a request arrives for a while: uvicorn would wait for ever.

    The time for the body of a request is limited where it is read.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start to wait for a first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Read what has arrived; wait for the rest of an unfinished head."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        super().connection_lost(exc)
        self._stop()

    def _wait(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop()
        elif self._waiting is None:
            self._waiting = self.loop.call_later(PATIENCE, self.transport.close)

    def _stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None


def made_server(app: Callable[..., object]) -> uvicorn.Server:
    """Return the server of an application, which answers no more connections at a time than a person needs."""
    config = uvicorn.Config(
        app,
        http=ImpatientProtocol,
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=int(PATIENCE),
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def opened_port(port: int) -> socket.socket:
    """Return a socket that listens on a port of this machine alone; 0 is any free port.

    Raises:
        InputError: If the port cannot be used.
    """
    remedy = "Choose another with --port, or --port 0 for any that is free."
    if not 0 <= port < 2**16:
        raise InputError(f"port {port} cannot be used: ports are below 65536. {remedy}")
    try:
        return socket.create_server((HOST, port))
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}). {remedy}") from error


def serve(
    lenses: Mapping[str, Lens],
    texts: Sequence[str] = (),
    *,
    opened: socket.socket,
    runs: Path | None = None,
    load: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the explorer on this machine alone until it is interrupted; its address goes to ``announce``.

    Models go by what `identilens.load` takes; ``load`` are the options that they were loaded with. ``opened`` is a
    socket of `opened_port`. ``runs`` is the folder of the runs that pages may save and open.
    """
    token, desk, port = secrets.token_urlsafe(24), Desk(lenses), opened.getsockname()[1]
    app = explorer_app(
        desk, token, [f"{HOST}:{port}", f"localhost:{port}"], texts, runs and Runs(runs), load
    )
    announce(f"http://{HOST}:{port}/#token={token}")
    try:
        with suppress(KeyboardInterrupt):
            made_server(app).run(sockets=[opened])
    finally:
        opened.close()
        desk.close()
