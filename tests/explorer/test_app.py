"""Requests to the explorer: what is answered, what is refused, and work that stops when nobody waits for it."""

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

import identilens as idl
from helpers.command import identilens
from helpers.serving import TOKEN
from identilens.errors import InputError
from identilens.explorer import server
from identilens.explorer.app import (
    MOST_BYTES,
    MOST_CHARACTERS,
    _asked,
    explorer_app,
)
from identilens.explorer.desk import Desk
from identilens.explorer.server import opened_port
from identilens.explorer.work import measured

HOST = "127.0.0.1:8765"
TEXT = (
    "The engine had run without a pause for eleven days when the noise began, and the second engineer put it down to "
    "a loose plate somewhere above the shaft until it grew regular and they opened the housing."
)
GOOD = {
    "host": HOST,
    "x-identilens-token": TOKEN,
    "origin": f"http://{HOST}",
    "content-type": "application/json",
}


@pytest.fixture(scope="module")
def desk(bundled):
    made = Desk({"encoder": bundled})
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(desk):
    return TestClient(explorer_app(desk, TOKEN, [HOST], ["<script>alert(1)</script>"]))


def ask(client, what, body, **headers):
    """Return the lines of an answer."""
    answer = client.post(f"/api/{what}", content=json.dumps(body), headers={**GOOD, **headers})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


@pytest.fixture(scope="module")
def held(client):
    steps = ask(client, "measure", {"model": "encoder", "text": TEXT})
    assert steps[0]["tokens"][0] == "[CLS]"
    assert [step["layer"] for step in steps[1:-1]] == [1, 2, 3, 4, 5, 6]
    assert all(len(step["viewer"]["maps"]) == 12 for step in steps[1:-1])
    assert steps[-1]["done"]
    return steps[-1]["held"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x-identilens-token": "wrong"}, 403), ({"x-identilens-token": ""}, 403),
        ({"host": "evil.example"}, 403), ({"host": "127.0.0.1:1"}, 403),
        ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403),
        ({"content-type": "text/plain"}, 415), ({"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)  # fmt: skip
def test_forged_requests_are_refused(client, headers, status):
    body = json.dumps({"model": "encoder", "text": "one"})
    assert (
        client.post("/api/measure", content=body, headers={**GOOD, **headers}).status_code == status
    )


def test_the_page_is_empty_and_what_it_shows_needs_the_token(client):
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    page = client.get("/", headers={"host": HOST})
    assert page.status_code == 200
    assert "alert" not in page.text.replace('role="alert"', "")
    assert TOKEN not in page.text
    (start,) = ask(client, "start", {})
    assert start == {
        "models": ["encoder"],
        "texts": ["<script>alert(1)</script>"],
        "load": {},
    }
    for token in ("", "wrong"):
        headers = {**GOOD, "x-identilens-token": token}
        assert client.post("/api/start", content="{}", headers=headers).status_code == 403
    policy = page.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    for name, words in (
        ("viewer.js", "tokenMaps"),
        ("explorer.js", "api/"),
        ("explorer.css", "--accent"),
    ):
        assert words in client.get(f"/{name}", headers={"host": HOST}).text
    assert client.get("/other.js", headers={"host": HOST}).status_code == 404


GUESSED = {"held": "guessed", "layer": 0, "head": 0, "kind": "encoder", "query": 0}


@pytest.mark.parametrize(
    ("what", "body", "words"),
    [
        ("measure", {"model": "other", "text": "one"}, "model"),
        ("measure", {"model": "encoder", "text": " "}, "characters"),
        ("measure", {"model": "encoder", "text": "a" * (MOST_CHARACTERS + 1)}, "characters"),
        ("measure", {"model": "encoder"}, "lacks"),
        ("row", GUESSED, "no longer held"),
        ("same", GUESSED, "no longer held"),
    ],
)
def test_bad_requests_say_what_is_wrong(client, what, body, words):
    answer = client.post(f"/api/{what}", content=json.dumps(body), headers=GOOD)
    assert answer.status_code == 400
    assert words in answer.text


def test_sizes_are_bounded(client):
    assert (
        client.post("/api/measure", content=b" " * (MOST_BYTES + 1), headers=GOOD).status_code
        == 413
    )
    assert client.post("/api/measure", content=b"[" * MOST_BYTES, headers=GOOD).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        "", "[1]", "{", "[" * 60_000, '{"a":' * 10_000, '{"held": "x", "layer": 1e999}', '{"layer": NaN}',
        '{"change": [-Infinity]}', '{"layer": ' + "9" * 5000 + "}", b"\xff",
    ],
    ids=range(10),
)  # fmt: skip
@pytest.mark.parametrize("what", ["measure", "row", "weights", "none"])
def test_what_is_no_request_is_refused(client, what, body):
    assert client.post(f"/api/{what}", content=body, headers=GOOD).status_code == 400


@pytest.mark.parametrize(
    "change",
    [{"layer": 10**400}, {"layer": -1}, {"layer": []}, {"head": 99}, {"kind": 7}, {"query": 10**30}, {"change": 5},
     {"change": [10**400]}, {"change": [None]}, {"change": []}, {"held": ["x"]},
     {"exact": 5}, {"outcome": {}}, {"tolerance": "9" * 400}, {"tolerance": []}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("what", ["row", "weights", "alternative"])
def test_values_of_no_request_are_refused_or_told(client, held, what, change):
    body = {
        "held": held, "layer": 3, "head": 10, "kind": "encoder", "query": 2, "change": [0.1],
        "outcome": "head", "tolerance": "0",
    }  # fmt: skip
    if what not in ("row", "weights"):
        body["held"] = "guessed"
    answer = client.post(f"/api/{what}", content=json.dumps({**body, **change}), headers=GOOD)
    assert answer.status_code in (200, 400)
    assert "Traceback" not in answer.text


def test_a_row_is_that_of_the_study(client, held, bundled):
    body = {"held": held, "layer": 3, "head": 10, "kind": "encoder", "query": 12}
    for tolerance in ("0", "1%"):
        (step,) = ask(client, "row", {**body, "outcome": "head", "tolerance": tolerance})
        options = {"layers": (3,), "heads": (10,), "queries": (12,), "tolerance": tolerance}
        found = idl.certify(bundled, [TEXT], **options).table
        for name in ("value", "lo", "hi"):
            assert step["row"][name] == pytest.approx(found[name].to_list(), abs=1e-6)
    for change, words in (({"query": 999}, "queries 0 to"), ({"outcome": "model"}, "outcome")):
        (step,) = ask(client, "row", {**body, "outcome": "head", "tolerance": "0", **change})
        assert words in step["error"]


def test_a_used_port_is_named_before_anything_is_loaded(monkeypatch):
    with opened_port(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InputError, match=rf"port {port} cannot be used .*in use.*Choose another with --port"
        ):
            opened_port(port)
        monkeypatch.setattr(
            "identilens.cli.explore.ModelOptions.load", lambda _: pytest.fail("loaded")
        )
        done = identilens("explore", "--model", "bundled", "--port", port, code=2)
        assert "Choose another with --port" in done.error
        assert done.output == ""
    assert (
        "Must be <= 65535"
        in identilens("explore", "--model", "bundled", "--port", 99999, code=2).error
    )


def left(desk, job, after):
    """Ask for a job, leave after some seconds, and return how long the worker then still worked."""

    async def leave():
        end = time.monotonic() + after

        async def gone():
            return time.monotonic() > end

        async for _ in desk.steps("model", job, gone):
            if time.monotonic() > end:
                break
        return time.monotonic()

    # In a thread: the browser of other tests has a loop running in this one.
    with ThreadPoolExecutor(1) as apart:
        ended = apart.submit(lambda: asyncio.run(leave())).result()
    desk._workers["model"].submit(lambda: None).result()
    return time.monotonic() - ended


def test_work_that_nobody_waits_for_stops(bundled):
    desk, told = Desk({"model": bundled}), []

    def job(check, tell):
        for step in range(200):
            tell({"step": step})
            told.append(step)
            time.sleep(0.02)

    assert left(desk, job, 0.2) < 0.5
    assert 1 < len(told) < 100
    desk.close()


@pytest.fixture(scope="module")
def decoded():
    return measured(idl.load("bundled-decoder"), "The ferry left.", lambda: None, lambda _: None)


@pytest.mark.parametrize(
    ("what", "more"),
    [
        ("strongest", {}), ("needed", {"answer": ""}), ("answered", {}), ("alternative", {}), ("without", {}),
        ("row", {"outcome": "answer", "tolerance": "1%"}), ("weight", {"key": 0, "weight": 0.5}),
        ("same", {"aim": "least", "tolerance": "1%", "heads": "layer"}), ("weights", {"change": [0.1] * 7}),
    ],
)  # fmt: skip
def test_every_request_is_answered(decoded, what, more):
    place = {"layer": 1, "head": 2, "kind": "decoder", "query": 2}
    job = _asked(decoded, what, place | more)
    assert len(json.dumps(job(lambda: None, lambda _: None))) > 20
    with pytest.raises(InputError, match="nothing"):
        _asked(decoded, "all", place)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("host", "named"), [("127.0.0.1", 403), ("0.0.0.0", 200)])
def test_all_of_a_network_open_the_page_where_it_is_asked_for(monkeypatch, host, named):
    """By any name of the machine, but with the token, and from no other page."""
    told, apps = [], []
    runs_nothing = SimpleNamespace(run=lambda sockets: None)
    monkeypatch.setattr(server, "made_server", lambda app: apps.append(app) or runs_nothing)
    opened = server.opened_port(0, host)
    address, port = opened.getsockname()
    assert address == host
    server.serve({"toy": None}, opened=opened, announce=told.append)
    client = TestClient(apps[0], base_url=f"http://localhost:{port}")

    def status(token="", **headers):
        told_by = {"x-identilens-token": token, "content-type": "application/json"}
        return client.post("/api/start", content="{}", headers=told_by | headers).status_code

    token = told[0].partition("#token=")[2]
    assert (status(), status(token)) == (403, 200)
    assert status(token, host=f"school:{port}") == named
    assert status(token, origin="http://elsewhere") == 403
    assert opened.fileno() == -1
