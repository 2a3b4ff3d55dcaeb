"""Trust of texts: tables, findings, lines of tokens, charts, and the report in a browser."""

from dataclasses import replace
from io import StringIO

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from rich.console import Console

import identilens as idl
from helpers import zoo
from helpers.browsing import Visit
from helpers.charts import drop_downs, marks
from identilens.errors import InputError
from identilens.studies.heads import RowSettings, TextHeads
from identilens.studies.trust.rows import VERDICTS
from identilens.studies.trust.study import TrustStudy

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the lower meadow would stand under water until the end of the month."
)
SCRIPT = "<script>alert(1)</script>"
IDS = {"input_ids": torch.arange(5, 29)[None]}


@pytest.fixture(scope="module")
def one(bundled):
    return idl.trust(bundled, TEXT, layers=3, heads=10, queries=["village"])


@pytest.fixture(scope="module")
def found():
    """Some rows of two heads of a decoder, with a hostile token."""
    made = idl.trust(idl.Lens(zoo.build("gpt2")), IDS, layers=1, heads=[0, 1], queries=[0, 4, 15, 23])
    hostile = pl.when(pl.col("key") == 3).then(pl.lit(SCRIPT)).otherwise(pl.col("token"))
    return replace(made, table=made.table.with_columns(hostile.alias("token")))


def test_a_row_is_what_intervals_say_of_it(one, bundled):
    expected = idl.intervals(bundled, TEXT, layers=3, heads=10, queries=["village"])
    both = ["text", "layer", "head", "kind", "query", "key", "weight", "lo", "hi"]
    assert_frame_equal(one.table.select(both), expected.table.select(both))
    assert one.table["token"].to_list() == expected.names(0, "encoder", "key")
    assert set(one.table["query_token"]) == {"village"}
    assert one.table["norm_share"].sum() == pytest.approx(1)
    assert one.table["contribution"].sum() == pytest.approx(1)
    assert set(one.table["verdict"]) <= set(VERDICTS)


def test_the_finding_of_one_row_in_words(one):
    most = one.table.sort("lo").row(-1, named=True)
    certain = one.table["lo"].sum()
    words, numbers = one.summary().text, one.summary().numbers
    assert words.startswith(
        f"At least {100 * certain:.0f} % of the attention of 'village' (query 4, layer 3, head 10) stays on the "
        f"same keys in every alternative; {100 * most['lo'] / certain:.0f} % of that is on '{most['token']}', which "
        f"contributes {100 * most['norm_share']:.0f} % of the summed norms"
    )
    assert numbers["certain_mass"] == pytest.approx(certain)
    assert sum(numbers[verdict] for verdict in VERDICTS) == pytest.approx(1, abs=1e-5)
    for verdict in VERDICTS:
        held = one.table.filter(verdict=verdict)["weight"].sum()
        assert numbers[verdict] == pytest.approx(held)
        assert (f"{100 * held:.0f} % {verdict}" in words) == (held >= 0.0005)


def test_the_finding_of_a_row_of_which_nothing_is_certain(one):
    nothing = replace(one, table=one.table.with_columns(lo=pl.lit(0.0)))
    first, _ = nothing.summary().text.splitlines()
    assert first.startswith("At least 0 % of the attention of ")
    assert first.endswith(" stays on the same keys in every alternative.")


def test_masked_rows_have_their_own_keys(found):
    assert (found.table["key"] <= found.table["query"]).all()
    rows = found.by_query()
    assert rows["keys"].to_list() == [1, 5, 16, 24] * 2
    first = found.table.filter(query=0).row(0, named=True)
    assert (first["lo"], first["removal"], first["verdict"]) == (1.0, None, VERDICTS[0])
    short = rows.filter(pl.col("query") <= 4)
    assert short["certain_mass"].to_list() == pytest.approx([1.0] * 4), "five keys and eight values: nothing can move"
    words = found.summary().text
    assert words.startswith("On average at least ")
    assert " of the attention of 8 queries stays on the same keys" in words
    last = rows.sort("certain_mass").row(0, named=True)
    assert f"{100 * last['certain_mass']:.0f} % for '{last['query_token']}' (query {last['query']}," in words


def test_lines_show_every_visible_token_with_its_mark_in_the_terminal(found, one, capsys):
    found.show()
    shown = capsys.readouterr().out
    assert shown.count("determined, little influence") >= 3, "a legend in words for each line"
    assert "●" in shown
    line = one.token_lines()[0]
    assert [marked.token for marked in line.tokens] == one.table["token"].to_list()
    assert [marked.mark.label for marked in line.tokens] == one.table["verdict"].to_list()
    plain = StringIO()
    Console(file=plain, width=4000, color_system=None).print(line.text())
    title, legend, tokens = plain.getvalue().splitlines()
    assert "attention of village (query 4)" in title
    assert all(verdict in legend for verdict in VERDICTS)
    top = one.table.sort("weight").row(-1, named=True)
    sign = next(marked.mark.sign for marked in line.tokens if marked.token == top["token"])
    assert f"{top['token']}{sign}{100 * top['weight']:.0f}%" in tokens
    colored = StringIO()
    Console(file=colored, width=4000, force_terminal=True, color_system="standard").print(line.text())
    assert "\x1b[" in colored.getvalue()


def test_a_notebook_shows_the_lines_with_hostile_tokens_as_text(found):
    page = found._repr_html_()
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    assert page.count('<figure class="token-line">') == 3


def test_charts_draw_the_table(found, tmp_path):
    charts = found.charts()
    assert list(charts) == ["intervals", "axes", "certain_by_head"]
    bars, ticks = marks(charts["intervals"])["bar"][0], marks(charts["intervals"])["tick"][0]
    assert bars == ticks
    assert len(bars) == len(found.table)
    drawn = pl.DataFrame(bars, infer_schema_length=None).filter(row=3)
    expected = found.table.filter(head=0, query=23).sort("weight", descending=True)
    for name in ("weight", "lo", "hi", "norm_share"):
        assert drawn[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-5, abs=1e-12)
    assert len(drop_downs(charts["intervals"])["Row"]) == 8
    points = pl.DataFrame(marks(charts["axes"])["point"][0], infer_schema_length=None)
    assert len(points) == len(found.table)
    assert points["certain"].max() <= 1 + 1e-9
    assert found.save_figures(tmp_path, ["svg"])


def test_a_run_resumes_and_loads(found, tmp_path):
    lens = idl.Lens(zoo.build("gpt2"))
    options = {"layers": 1, "heads": [0, 1], "queries": [4, 15], "out": tmp_path / "run"}

    def stop(rows, _total, _note):
        if rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        idl.trust(lens, IDS, **options, progress=stop)
    again = idl.trust(lens, IDS, **options, resume=True)
    expected = found.table.filter(pl.col("query").is_in([4, 15]))
    assert_frame_equal(again.table.drop("token"), expected.drop("token"), abs_tol=1e-9)
    assert_frame_equal(idl.load_result(tmp_path / "run").table, again.table)


def test_the_positions_of_an_image_are_counted_once_a_layer(monkeypatch):
    read, seen = TextHeads.read, []
    monkeypatch.setattr(TextHeads, "read", lambda heads, place: seen.append(place) or read(heads, place))
    study = TrustStudy(idl.Lens(zoo.build("vit")), zoo.example("vit"), RowSettings(queries=("[CLS]", 3)))
    assert len(seen) == len({(place.text, place.site.layer) for (place,) in study.heads.parts})
    assert {tuple(rows) for _, rows in study.parts} == {(0, 3)}
    assert len(study.parts) == 4 * len(seen), "four heads a layer"


def test_bad_queries_are_refused(bundled):
    with pytest.raises(InputError, match="no token or position 'absent'"):
        idl.trust(bundled, TEXT, queries="absent")


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_report_in_a_browser(browser, found, tmp_path, width, scheme):
    visit = Visit(browser, found.to_html(tmp_path / "page.html"), width=width, scheme=scheme)
    lines = visit.page.locator("#lines .token-line")
    assert lines.count() == 8
    last = lines.nth(3)
    assert last.locator("h3").inner_text().endswith("(query 23)")
    assert last.locator("p:not(.legend) .token").count() == 24
    assert "alert(1)" in last.inner_text()
    words = last.locator(".legend").inner_text()
    assert all(verdict in words for verdict in VERDICTS)
    strong = visit.page.locator("#lines .token.strong.series-0").first
    ink, ground, page = (
        strong.evaluate(f"one => getComputedStyle({of}).{what}")
        for of, what in (("one", "color"), ("one", "backgroundColor"), ("document.body", "backgroundColor"))
    )
    assert len({ink, ground, page}) == 3
    assert visit.page.locator("#intervals-0 svg").count() == 1
    visit.close()
