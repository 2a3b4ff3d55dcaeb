"""The explorer's pages and requests, safe by default.

The page itself contains no text and no model. Questions need the start token; hosts and origins other than the
explorer's own are refused, as is anything but JSON; sizes are bounded; the page runs only the scripts it brings.
"""

import json
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from identilens.charts.figures import document, looks, own_file, viewer_script
from identilens.errors import InputError
from identilens.explorer.desk import Desk
from identilens.explorer.work import (
    Measured,
    alternative,
    answered,
    broken_row,
    measured,
    moved_row,
    needed,
    proven_row,
    same_answer,
    strongest,
    without_head,
)

MOST_BYTES = 64 * 1024
MOST_CHARACTERS = 8_000

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
}

_STATIC = Path(__file__).parent / "static"


def explorer_app(
    desk: Desk,
    token: str,
    hosts: Sequence[str],
    texts: Sequence[str] = (),
    load: Mapping[str, str] | None = None,
) -> Starlette:
    """Return the application: ``token`` opens it, ``hosts`` (with their port) are the names that it answers to, or all.

    Models go by what `identilens.load` takes; ``load`` are the options that they were loaded with.
    """
    start = {"models": list(desk.lenses), "texts": list(texts), "load": load or {}}
    site = _Site(desk, token, hosts, start)
    return Starlette(
        routes=[
            Route("/", site.file),
            Route("/{name:str}", site.file),
            Route("/api/{what:str}", site.ask, methods=["POST"]),
        ]
    )


class _Site:
    """Answers requests, or refuses them."""

    def __init__(
        self, desk: Desk, token: str, hosts: Sequence[str], start: Mapping[str, Any]
    ) -> None:
        self.desk, self.token, self.hosts, self.start = desk, token, hosts, start

    async def file(self, request: Request) -> Response:
        self._refuse_foreign(request)
        name = request.url.path.removeprefix("/")
        if name not in _FILES:
            raise _refused(404, "there is no such file.")
        kind, content = _FILES[name]
        return Response(content(), media_type=kind, headers=HEADERS)

    async def ask(self, request: Request) -> Response:
        self._refuse_foreign(request)
        token = request.headers.get("x-identilens-token", "")
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            raise _refused(
                403, "open the address that the explorer printed; its token is missing or wrong."
            )
        if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
            raise _refused(415, "a request must be JSON.")
        if int(request.headers.get("content-length", MOST_BYTES + 1)) > MOST_BYTES:
            raise _refused(413, f"a request may hold {MOST_BYTES} bytes of JSON.")
        what = request.path_params["what"]
        try:
            body = json.loads(await request.body())
            if what == "start":
                return JSONResponse(self.start, headers=HEADERS)
            model, job = _job(self.desk, what, body)
        except InputError as error:
            raise _refused(400, str(error)) from error
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise _refused(400, "a request lacks what it needs, or is no JSON.") from error
        return StreamingResponse(
            self._lines(model, job, request), media_type="application/x-ndjson", headers=HEADERS
        )

    async def _lines(self, model: str, job: Any, request: Request) -> AsyncIterator[bytes]:
        async for step in self.desk.steps(model, job, request.is_disconnected):
            yield (json.dumps(step) + "\n").encode()

    def _refuse_foreign(self, request: Request) -> None:
        """Refuse a request that comes under another name, or from another page."""
        host = request.headers.get("host", "")
        elsewhere = request.headers.get("origin") not in (None, f"http://{host}")
        if elsewhere or (self.hosts and host not in self.hosts):
            raise _refused(403, "this host or origin is not the explorer's own.")


def _refused(status: int, words: str) -> HTTPException:
    return HTTPException(status, words, HEADERS)


def _job(desk: Desk, what: str, body: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the model and the job that a request asks for."""
    if what == "measure":
        model, text = str(body["model"]), str(body["text"])
        lens = desk.lens(model)
        if not text.strip() or len(text) > MOST_CHARACTERS:
            raise InputError(
                f"expected a text of 1 to {MOST_CHARACTERS} characters; got {len(text)}."
            )
        return model, lambda check, tell: _held(desk, model, measured(lens, text, check, tell))
    model, held = desk.held(str(body["held"]))
    return model, _asked(held, what, body)


def _asked(text: Measured, what: str, body: Mapping[str, Any]) -> Any:
    """Return the job that a request asks for on a text."""
    match what:
        case "strongest":
            return lambda *_: {"strongest": strongest(text)}
        case "needed":
            wanted = str(body["answer"])
            return lambda *_: needed(text, wanted)
        case "answered":
            return lambda check, tell: answered(text, check, tell)
    head = text.head(int(body["layer"]), int(body["head"]), str(body["kind"]))
    match what:
        case "alternative":
            return lambda check, tell: {"alternative": alternative(text, head, check)}
        case "without":
            return lambda *_: {"broken": without_head(text, head)}
    query = int(body["query"])
    match what:
        case "row":
            outcome, tolerance = str(body["outcome"]), str(body["tolerance"])
            return lambda *_: {"row": proven_row(text, head, query, outcome, tolerance)}
        case "same":
            wishes = [str(body[name]) for name in ("aim", "tolerance", "heads")]
            return lambda *_: {"same": same_answer(text, head, query, *wishes)}
        case "weight":
            key, weight = int(body["key"]), float(body["weight"])
            return lambda *_: {"broken": broken_row(text, head, query, key, weight)}
        case "weights":
            change = [float(weight) for weight in body["change"]]
            return lambda *_: {"moved": moved_row(text, head, query, change)}
    raise InputError(f"there is nothing called {what!r} to ask for.")


def _held(desk: Desk, model: str, text: Measured) -> dict[str, Any]:
    """Return the name of a text that was measured, and whether its model predicts and writes."""
    return {
        "held": desk.keep(model, text),
        "predicts": text.answer.outcome == "prediction",
        "writes": text.lens.model.can_generate()
        and all(layer.site.kind == "decoder" for layer in text.layers),
    }


def _style() -> str:
    styles = map(own_file, ("page.css", "viewer.css", "token_lines.css"))
    return "\n".join([document("colors.css"), *styles, _static("explorer.css")])


def _static(name: str) -> str:
    return (_STATIC / name).read_text(encoding="utf-8")


_FILES: dict[str, tuple[str, Callable[[], str]]] = {
    "": ("text/html", lambda: _static("explorer.html")),
    "explorer.css": ("text/css", _style),
    "explorer.js": (
        "text/javascript",
        lambda: (
            '"use strict";\n(() => {\n' + _static("pane.js") + _static("explorer.js") + "})();\n"
        ),
    ),
    "viewer.js": (
        "text/javascript",
        lambda: f"window.identilensLooks = {json.dumps(looks())};\n{viewer_script()}",
    ),
}
