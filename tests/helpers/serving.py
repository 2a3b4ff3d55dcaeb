"""An explorer that answers in a thread of this process, on a port of its own."""

import socket
import threading
import time
from contextlib import contextmanager

import uvicorn

from identilens.explorer.app import explorer_app
from identilens.explorer.desk import Desk

TOKEN = "start-token"


@contextmanager
def explorer(lenses, texts=(), runs=None):
    """Yield the address of a running explorer, without its token."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    desk = Desk(lenses)
    app = explorer_app(desk, TOKEN, [f"127.0.0.1:{port}"], texts, runs)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        desk.close()
