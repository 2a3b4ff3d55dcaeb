"""An explorer that answers in a thread of this process, on a port of its own."""

import threading
import time
from contextlib import contextmanager

from identilens.explorer.app import explorer_app
from identilens.explorer.desk import Desk
from identilens.explorer.server import made_server, opened_port

TOKEN = "start-token"


@contextmanager
def explorer(lenses, texts=()):
    """Yield the address of a running explorer, without its token."""
    opened = opened_port(0)
    port = opened.getsockname()[1]
    desk = Desk(lenses)
    server = made_server(explorer_app(desk, TOKEN, [f"127.0.0.1:{port}"], texts))
    thread = threading.Thread(target=server.run, args=([opened],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(10)
        opened.close()
        desk.close()
