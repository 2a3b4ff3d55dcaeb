"""Who is told of a run: a notebook's cell, a terminal, a function, the log, or nobody."""

import io
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

import pytest

from helpers.toy import toy
from identilens.runs import progress
from identilens.runs.progress import watched


class Terminal(io.StringIO):
    def isatty(self):
        return True


@contextmanager
def notebook():
    """A notebook, whose cell shows the standard error."""
    shell, cell = SimpleNamespace(config={"IPKernelApp": {}}), io.StringIO()
    module = SimpleNamespace(get_ipython=lambda: shell)
    with patch.dict(sys.modules, {"IPython": module}), patch.object(sys, "stderr", cell):
        yield cell


def test_a_terminal_has_a_bar_and_a_pipe_has_none():
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        with patch.object(sys, "stderr", stream):
            toy(layers="3,4")
        assert ("2/2" in stream.getvalue()) == drawn


def test_a_notebook_has_a_bar_in_its_cell():
    with notebook() as cell:
        toy(layers="3,4")
    assert "2/2" in cell.getvalue()


def test_false_and_a_function_draw_nothing():
    told = []
    with notebook() as cell:
        toy(layers="3,4", progress=False)
        toy(layers="3,4", progress=lambda *place: told.append(place))
    assert cell.getvalue() == ""
    assert told[-1] == (2, 2, "")


def test_a_bar_has_the_note_and_inner_runs_have_no_bar():
    with notebook() as cell:
        with watched("texts", None) as outer:
            outer(1, 3, "layer 2")
            with watched("rows", None) as inner:
                assert inner is None
        with watched("rows", True) as again:
            assert again is not None
    assert re.search(r"1/3 texts after .* left, layer 2", cell.getvalue())


@pytest.mark.parametrize(
    ("calls", "written"),
    [
        ([(0, 0, ""), (20, 0, "layer 1"), (25, 1, ""), (30, 2, ""), (86, 3, "layer 2"), (90, 4, "")],
         ["1 of 40 texts after 0:00:25, about 16 minutes left",
          "3 of 40 texts after 0:01:26, about 18 minutes left, layer 2"]),
        # What an interrupted run has left took no time.
        ([(7, 30, ""), (17, 32, ""), (80, 38, "")],
         ["32 of 40 texts after 0:00:10, about 40 seconds left",
          "38 of 40 texts after 0:01:13, about 20 seconds left"]),
        ([(0, 0, ""), (1, 20, ""), (2, 40, "")], []),
    ],
)  # fmt: skip
def test_the_log_says_what_is_left_as_soon_as_it_can_be_told(calls, written, caplog, monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with (
        caplog.at_level("INFO", "identilens"),
        patch.object(sys, "stderr", io.StringIO()),
        watched("texts", None) as told,
    ):
        for second, done, note in calls:
            clock.now = second
            told(done, 40, note)
    assert caplog.messages == written
