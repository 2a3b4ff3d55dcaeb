"""Who is told of a run: a notebook's cell, a terminal, a function, the log, or nobody."""

import io
import re
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from helpers.toy import toy
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
    assert re.search(r"1/3 .* texts.*, layer 2", cell.getvalue())
