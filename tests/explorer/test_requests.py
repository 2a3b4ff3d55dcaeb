"""What a request to the explorer asks for and is told, without the work: the functions that do it are stood in for."""

from types import SimpleNamespace

import pytest
import torch
from starlette.testclient import TestClient

from identilens.errors import InputError
from identilens.explorer import app, server
from identilens.explorer.app import _job, realised

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

PLACE = {"held": "name", "layer": 1, "head": 2, "kind": "decoder"}
AT = SimpleNamespace(lens="lens", text="a text", head=lambda *where: ("head", *where))
DESK = SimpleNamespace(held=lambda name: (f"m {name}", AT))
HEAD = ("head", 1, 2, "decoder")


@pytest.mark.parametrize(
    ("what", "more", "function", "told", "given"),
    [
        ("contributions", {"exact": True}, "contributions", "viewer", (AT, True, "c", "t")),
        ("contributions", {"exact": 1}, "contributions", "viewer", (AT, False, "c", "t")),
        ("row", {"query": 3, "outcome": "head", "tolerance": 0}, "proven_row", "row", (AT, HEAD, 3, "head", "0")),
        ("same", {"query": 3, "aim": "least", "tolerance": "1%", "heads": "layer"}, "same_answer", "same",
         (AT, HEAD, 3, "least", "1%", "layer")),
        ("alternative", {}, "alternative", "alternative", (AT, HEAD, "c")),
        ("parameters", {}, "realised", "alternative", (AT, HEAD)),
        ("without", {}, "without_head", "broken", (AT, HEAD)),
        ("strongest", {}, "strongest", "strongest", (AT,)),
        ("weight", {"query": 3, "key": 2, "weight": 1}, "broken_row", "broken", (AT, HEAD, 3, 2, 1.0)),
        ("weights", {"query": 3, "change": [1, 0.5]}, "moved_row", "moved", (AT, HEAD, 3, [1.0, 0.5])),
    ],
)  # fmt: skip
def test_a_request_reaches_its_function(monkeypatch, what, more, function, told, given):
    monkeypatch.setattr(app, function, lambda *received: received)
    model, job = _job(DESK, what, PLACE | more)
    assert model == "m name"
    assert job("c", "t") == {told: given}


def test_what_cannot_be_asked_for():
    with pytest.raises(InputError, match="nothing"):
        _job(DESK, "all", PLACE | {"query": 3})


def test_where_no_other_parameters_are_near(monkeypatch):
    none = SimpleNamespace(dimension=0, note="none lies near.", weights=None)
    monkeypatch.setattr(app, "made", lambda *given: (none, none, None))
    head = SimpleNamespace(group=1, values=torch.zeros(6, 4))
    found = realised(SimpleNamespace(lens="lens", item="item"), head)
    assert found == {"none": "none lies near."}


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
