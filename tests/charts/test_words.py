"""Words that charts and pages share: lines of marked tokens, cells of tables, names of files, facts of a run."""

import re
from pathlib import Path

import polars as pl
import pytest
import torch

from helpers.pages import heads
from identilens.charts.cells import heat
from identilens.charts.figures import own_file
from identilens.charts.kit import choose, lines
from identilens.charts.labels import cell, file_names, said, shortened, visible_text, word_pieces
from identilens.charts.notebook import MapView
from identilens.charts.page import table_html
from identilens.charts.save import FORMATS, save_charts
from identilens.charts.token_lines import (
    Mark,
    MarkedToken,
    TokenLine,
    first_tokens,
    notebook_html,
)
from identilens.charts.viewer import TokenMap
from identilens.errors import InputError, OutputFolderError

STRONG, FRAMED, PLAIN = Mark("sure", "●", 0, True), Mark("free", "△", 1), Mark("none", "·", None)
LINE = TokenLine(
    "a <row>",
    [MarkedToken("<b>", STRONG, "50 %", 'a "note"'), MarkedToken(" c", FRAMED), MarkedToken("", PLAIN)],
    [(STRONG, "50 %"), (PLAIN, "2 %")],
)  # fmt: skip


def test_a_line_in_a_terminal():
    text = LINE.text()
    assert text.plain == "a <row>\n● sure 50 %   · none 2 %   \n <b>[●50 %] c[△] ∅"
    styled = [(text.plain[span.start : span.end], span.style) for span in text.spans]
    assert styled == [
        ("● sure", "bold reverse cyan"), ("· none", "dim"),
        ("<b>[●50 %]", "bold reverse cyan"), ("c[△]", "underline yellow"), ("∅", "dim"),
    ]  # fmt: skip


def test_pieces_of_a_word_are_joined():
    assert word_pieces(["<s>", "The", " pain", "ter", ",", " 2", "0", " ", "\n", "a"]) == [
        ("<s>", False), ("The", False), ("pain", False), ("ter", True), (",", False),
        ("2", False), ("0", True), (" ", False), ("\n", False), ("a", False),
    ]  # fmt: skip
    assert word_pieces(["un", "##told", "##", "it", "is"]) == [
        ("un", False), ("told", True), ("##", True), ("it", False), ("is", False),
    ]  # fmt: skip


def test_a_long_line_shows_its_first_tokens(monkeypatch):
    monkeypatch.setattr("identilens.charts.token_lines.LONGEST", 2)
    rows = pl.DataFrame({"token": ["a", "b", "c"]})
    title, shown = first_tokens("Row 1", rows)
    assert (title, shown["token"].to_list()) == ("Row 1, the first 2 of 3 tokens", ["a", "b"])
    assert first_tokens("Row 1", rows.head(2))[0] == "Row 1"


def test_a_line_in_a_page():
    assert LINE.html() == (
        '<figure class="token-line"><h3>a &lt;row&gt;</h3><p class="legend">'
        '<span class="token series-0 strong">● sure <small>50 %</small></span> '
        '<span class="token plain">· none <small>2 %</small></span></p><p> '
        '<span class="token series-0 strong" title="a &quot;note&quot;" tabindex="0">'
        "&lt;b&gt; <small>●50 %</small></span> "
        '<span class="token series-1">c <small>△</small></span> '
        '<span class="token plain">∅ <small>·</small></span></p></figure>'
    )
    shown = notebook_html([LINE, LINE])
    assert shown.count(LINE.html()) == 2
    assert shown.startswith(f"<style>{own_file('token_lines.css')}</style><div style=")
    assert "--surface: #" in shown
    assert notebook_html([]) == ""


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), ("", "–"), (float("inf"), "–"), (True, "yes"), (False, "no"), (0.123456, "0.1235"), (7, "7"),
        ([1, 0.5, None], "1, 0.5, –"), ("a\u202eb", visible_text("a\u202eb")), (0, "0"), (0.0, "0"),
    ],
)  # fmt: skip
def test_cells_of_tables(value, shown):
    assert cell(value) == shown


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{texts:text}, {one:text}", ["1,200 texts, 1 text"]),
        ("{share:.1%}", ["33.3 %"]),
        ("{share:≥.1%} to {share:≤.1%}", ["33.3 % to 33.4 %"]),
        (
            "from {share:.1%} to {share:.1%}, between {share:.2f} and {share:.2f}, {claim}, 1 to {texts:,}",
            ["33.3 %, 0.33, 3 to 3, 1 to 1,200"],
        ),
        ("{share:≥.2f} {share:≤.2f} {share:.2f}", ["0.33 0.34 0.33"]),
        ("{name!r} {share:+.3g}\nnone {missing}\nnone {none:.2f}\nlast", ["'a{b}' +0.333", "last"]),
    ],
)
def test_a_line_without_its_number_is_not_said(template, words):
    numbers = {
        "texts": 1200,
        "one": 1,
        "share": 1 / 3,
        "claim": "3 to 3",
        "none": None,
        "name": "a{b}",
    }
    assert said(template, numbers) == words


def test_a_table_for_a_notebook():
    shown = table_html(pl.DataFrame({"name": ["<i>"], "share": [0.25], "empty": [None]}))
    assert shown.startswith('<div class="identilens"><style>')
    cells = re.findall(r"<t[hd](?: [^>]*)?>(.*?)</t[hd]>", shown, re.DOTALL)
    assert [cell.strip() for cell in cells] == ["name", "share", "empty", "&lt;i&gt;", "0.25", "–"]


def test_names_of_files():
    assert file_names(["a b", "A-b", ".", "水", "x" * 70]) == {
        "a b": "a_b", "A-b": "A_b", ".": "type_2", "水": "type_3", "x" * 70: "x" * 60,
    }  # fmt: skip
    assert [shortened("abcdefghij", limit) for limit in (10, 7, 4)] == [
        "abcdefghij",
        "abcd…ij",
        "ab…j",
    ]
    assert [visible_text(one) for one in ("", " a ", "  ", "a b")] == ["∅", "␣a␣", "␣␣", "a b"]


def token_map(interest, keys=("c", "d"), n=2):
    matrix = torch.full((n, 2), 0.5)
    return TokenMap(
        {"head": interest}, {"raw": matrix}, ["a", "b"], list(keys), "note", {}, interest
    )


def test_the_viewer_as_a_file(tmp_path):
    view = MapView([token_map(1), token_map(2)])
    path = view.to_html(tmp_path / "new" / "map.html")
    assert path.read_text("utf-8") == view.html()
    held = re.search(r'"first":(\d)', view.html())
    assert held[1] == "1"


FRAME = pl.DataFrame({"layer": [0, 1, 2], "rate": [0.5, 0.7, 0.6]})


def test_every_format_is_written(tmp_path):
    written = save_charts({"rates": lines(FRAME, "layer", "rate")}, tmp_path, [*FORMATS])
    assert [path.name for path in written] == ["rates.png", "rates.svg", "rates.pdf"]
    starts = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    for one in written:
        assert one.read_bytes().startswith(starts[one.suffix])
    assert not list(tmp_path.rglob(".*"))


def test_a_chart_that_offers_a_choice_is_written_once_for_each(tmp_path):
    chart = choose(
        heat(heads(), "head", "layer", "share"),
        heads(),
        "kind",
        "Attention",
    )
    paths = save_charts({"share": chart.properties(title="Shares")}, tmp_path, ["svg"])
    assert [path.name for path in paths] == ["share_encoder.svg", "share_decoder.svg"]
    first, second = (path.read_text() for path in paths)
    assert first.count(">0.636<") == 1
    assert ">Shares<" in first
    assert ">Attention encoder<" in first
    assert ">Attention decoder<" in second
    assert first != second


@pytest.mark.parametrize("formats", [["png", "gif"], [], "png"])
def test_wrong_formats_are_refused_before_anything_is_written(tmp_path, formats):
    with pytest.raises(InputError, match="any of png, svg, pdf"):
        save_charts({"rates": lines(FRAME, "layer", "rate")}, tmp_path / "new", formats)
    assert not (tmp_path / "new").exists()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "rates.svg"
    path.write_text("old")

    def full(target, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputFolderError, match="No space left"):
        save_charts({"rates": lines(FRAME, "layer", "rate")}, tmp_path, ["svg"])
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["rates.svg"]
