"""Starting the explorer: models are loaded, a token is drawn, and the address is printed."""

import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import uvicorn

from identilens.errors import InputError
from identilens.explorer.app import explorer_app
from identilens.explorer.desk import Desk
from identilens.models.lens import Lens

HOST, EVERYWHERE = "127.0.0.1", "0.0.0.0"


def made_server(app: Callable[..., object]) -> uvicorn.Server:
    """Return the server of an application."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def opened_port(port: int, host: str = HOST) -> socket.socket:
    """Return a socket that listens on a port; 0 is any free port, and the host is an address of this machine.

    Raises:
        InputError: If the port cannot be used.
    """
    try:
        return socket.create_server((host, port))
    except OSError as error:
        raise InputError(
            f"port {port} cannot be used ({error.strerror}). Choose another with --port, or --port 0 for any that is "
            "free."
        ) from error


def serve(
    lenses: Mapping[str, Lens],
    texts: Sequence[str] = (),
    *,
    opened: socket.socket,
    load: Mapping[str, str] | None = None,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve the explorer until it is interrupted; its address goes to ``announce``.

    Models go by what `identilens.load` takes; ``load`` are the options that they were loaded with. ``opened`` is a
    socket of `opened_port`.
    """
    token, desk, (host, port) = secrets.token_urlsafe(24), Desk(lenses), opened.getsockname()
    # Where machines of a network know this one by names of their own, the token alone opens it.
    names = [] if host == EVERYWHERE else [f"{host}:{port}", f"localhost:{port}"]
    app = explorer_app(desk, token, names, texts, load)
    reached = socket.gethostname() if host == EVERYWHERE else host
    announce(f"http://{reached}:{port}/#token={token}")
    try:
        with suppress(KeyboardInterrupt):
            made_server(app).run(sockets=[opened])
    finally:
        opened.close()
        desk.close()
