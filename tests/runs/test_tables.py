"""Tables in the terminal: numbers to the right, what is missing as a dash."""

import io
import random
import re
import sys
from contextlib import contextmanager
from time import sleep
from unittest.mock import patch

import polars as pl
import pytest

from helpers.toy import toy
from identilens.charts.labels import outward, rounded_end
from identilens.runs import progress
from identilens.runs.progress import watched
from identilens.runs.tables import (
    ends,
    markdown_table,
    print_table,
)


def test_numbers_stand_to_the_right_and_words_to_the_left(capsys):
    frame = pl.DataFrame({
        "name": ["a", "longer"], "number": [1, 20_000], "share": [0.123456, None], "some": [True, False],
    })  # fmt: skip
    print_table("Title", frame)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].strip() == "Title"
    assert [line.split() for line in lines[2:3]] == [["name", "number", "share", "some"]]
    assert [line.strip() for line in lines if "0" in line] == [
        "a           1 0.1235 yes",
        "longer  20000      – no",
    ]


def test_spaces_are_seen(capsys):
    frame = pl.DataFrame({"text": [0, 0], "head": [1, 2], "token": [" sea", ""]})
    print_table("Title", frame)
    out = capsys.readouterr().out
    assert "␣sea" in out
    assert "∅" not in out


@pytest.mark.parametrize("form", [".1f", ".2f", "z.4f", "z.3g", ".0f"])
def test_proven_ends_are_never_rounded_inward(form):
    generator = random.Random(0)
    for _ in range(2_000):
        end = generator.choice([-1, 1]) * 10 ** generator.uniform(-7, 4)
        ends = [rounded_end(end, form, side) for side in (-1, 1)]
        assert float(ends[0]) <= end <= float(ends[1])
        assert format(end, form) in ends


def test_ends_in_charts_are_rounded_outward_and_other_numbers_stay():
    frame = pl.DataFrame({"lo": [0.9996, None], "hi": [0.10001, 0.2], "value": [0.12345, 1.0]})
    assert outward(frame).rows() == [(0.999, 0.101, 0.12345), (None, 0.2, 1.0)]


def test_ends_as_a_sum_in_double_precision_gives_them_are_not_moved():
    assert [rounded_end(0.1 + 0.2, ".1f", -1), rounded_end(0.1 + 0.2, ".1f", 1)] == ["0.3", "0.3"]
    assert [rounded_end(0.7 - 0.4, "z.3g", -1), rounded_end(-0.0, "z.3g", 1)] == ["0.3", "0"]


def test_tables_round_proven_ends_outward(capsys):
    frame = pl.DataFrame({"lo": [0.123456, 0.5], "hi": [0.123412, 0.5], "other": [0.123456, 0.5]})
    print_table("Title", frame)
    assert capsys.readouterr().out.split()[5:8] == ["0.1234", "0.1235", "0.1235"]
    assert frame.select(ends(3)).rows() == [(0.123, 0.124), (0.5, 0.5)]


def test_columns_without_values_and_rows_beyond_a_screen_are_left_out(capsys):
    frame = pl.DataFrame({
        "name": [f"row {number}" for number in range(50)], "of_what": ["x"] * 50, "low": [None] * 50,
        "not_a_number": [float("nan")] * 50, "rows": [7] * 50,
    })  # fmt: skip
    print_table("Title", frame)
    out = capsys.readouterr().out
    assert "name   of what rows" in out
    assert "low" not in out
    assert "not a number" not in out
    assert len([line for line in out.splitlines() if line.startswith(" row ")]) == 12
    assert "In all: 50 rows and 3 columns." in out


def test_a_markdown_table_has_numbers_to_the_right_and_names_without_markup():
    name = "a|b <img src=x> [c](d) `e`\nf"
    shown = r"a\|b \<img src=x\> \[c\](d) \`e\` f"
    frame = pl.DataFrame({"name": [name, None], "n": [1, 2], "x": [0.12345, 2.0]})
    assert markdown_table(frame).splitlines() == [
        "| name | n | x |", "| --- | ---: | ---: |", f"| {shown} | 1 | 0.123 |", "|  | 2 | 2.000 |",
    ]  # fmt: skip
    assert markdown_table(frame, 1).splitlines()[2] == f"| {shown} | 1 | 0.1 |"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@contextmanager
def notebook():
    """A notebook, whose cell shows the standard error."""
    cell = io.StringIO()
    with patch.dict(sys.modules, {"ipykernel": None}), patch.object(sys, "stderr", cell):
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


def test_without_a_terminal_a_bar_is_written_after_a_while(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.01)
    with patch.object(sys, "stderr", io.StringIO()) as file, watched("texts", None) as told:
        sleep(0.02)
        told(2, 40, "layer 2")
    assert re.search(r"2/40 texts after .* left, layer 2", file.getvalue())
    with patch.object(sys, "stderr", None), watched("texts", None) as told:
        told(1, 2)
