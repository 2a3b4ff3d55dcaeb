"""Starting the explorer: models are loaded, a token is drawn, and the address is printed."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import uvicorn

from identilens.explorer.app import explorer_app
from identilens.explorer.desk import Desk
from identilens.explorer.runs import Runs
from identilens.models.lens import Lens

HOST = "127.0.0.1"


def serve(
    lenses: Mapping[str, Lens], texts: Sequence[str] = (), *, port: int = 8765, runs: Path | None = None,
    load: Mapping[str, str] | None = None, announce: Callable[[str], None] = print,
) -> None:  # fmt: skip
    """Serve the explorer on this machine alone until it is interrupted; its address goes to ``announce``.

    Models go by what `identilens.load` takes; ``load`` are the options that they were loaded with. ``runs`` is the
    folder of the runs that pages may save and open.
    """
    token, desk = secrets.token_urlsafe(24), Desk(lenses)
    app = explorer_app(desk, token, [f"{HOST}:{port}", f"localhost:{port}"], texts, runs and Runs(runs), load)
    announce(f"http://{HOST}:{port}/#token={token}")
    try:
        uvicorn.run(app, host=HOST, port=port, log_level="warning", access_log=False, server_header=False)
    finally:
        desk.close()
