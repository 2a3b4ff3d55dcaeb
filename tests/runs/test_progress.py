"""Who is told of a run: a notebook's cell, a terminal, a function, the log, or nobody."""

import io
import re
import sys
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from helpers.killing import contents
from helpers.toy import toy
from identilens.errors import InputError
from identilens.runs import progress
from identilens.runs.progress import watched


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown():
    """A notebook: what its cell has shown, one state after another."""
    states = []
    handle = SimpleNamespace(update=states.append)
    display = SimpleNamespace(
        HTML=str, display=lambda what, display_id: states.append(what) or handle
    )
    shell = SimpleNamespace(config={"IPKernelApp": {}})
    modules = {"IPython": SimpleNamespace(get_ipython=lambda: shell), "IPython.display": display}
    with patch.dict(sys.modules, modules):
        yield states


def test_a_terminal_has_a_bar_and_a_pipe_has_none():
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        with patch.object(sys, "stderr", stream):
            toy(layers="3,4")
        assert ("2/2" in stream.getvalue()) == drawn


def test_a_notebook_has_a_bar_in_its_cell(shown):
    toy(layers="3,4")
    assert 'value="0"' in shown[0]
    assert 'max="2" value="2"' in shown[-1]
    assert "2/2" in shown[-1]


def test_false_and_a_function_draw_nothing(shown):
    told = []
    toy(layers="3,4", progress=False)
    toy(layers="3,4", progress=lambda *place: told.append(place))
    assert shown == []
    assert told[-1] == (2, 2, "")


def test_notes_are_escaped_and_inner_runs_have_no_bar(shown):
    with watched("texts", None) as outer:
        outer(1, 1, "<script>")
        with watched("rows", None) as inner:
            assert inner is None
    assert "&lt;script&gt;" in shown[-1]
    with watched("rows", True) as again:
        assert again is not None


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_reports_no_progress_is_refused_before_anything_is_overwritten(tmp_path):
    toy(layers="3,4", out=tmp_path / "run")
    before = contents(tmp_path / "run")
    with pytest.raises(InputError, match="progress"):
        toy(layers="5", out=tmp_path / "run", overwrite=True, progress="yes")
    assert contents(tmp_path / "run") == before


def test_a_bar_says_how_many_are_done_in_a_second(shown):
    with watched("texts", None) as told:
        told(1, 3, "")
        told(3, 3, "")
    assert any(re.search(r"\d/s, ", state) for state in shown)
    assert progress._rate(2.0) == "2.0/s"
    assert progress._rate(0.25) == "4.0 s each"
