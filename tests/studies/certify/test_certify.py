"""Certificates of texts: tables, findings, lines of tokens, charts, and the report in a browser."""

from dataclasses import replace
from io import StringIO

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from rich.console import Console

import identilens as idl
from helpers import zoo
from helpers.charts import drop_downs, marks
from identilens.errors import InputError
from identilens.measures.attention import iterate_alternatives
from identilens.studies.certify import views
from identilens.studies.certify.rows import VERDICTS
from identilens.studies.certify.study import CertifySettings, CertifyStudy
from identilens.studies.heads import TextHeads

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the lower meadow would stand under water until the end of the month."
)
SCRIPT = "<script>alert(1)</script>"
IDS = {"input_ids": torch.arange(5, 29)[None]}


@pytest.fixture(scope="module")
def one(bundled):
    return idl.certify(bundled, TEXT, layers=3, heads=10, queries=["village"], tolerance=0)


@pytest.fixture(scope="module")
def found():
    """Some rows of two heads of a decoder, with a hostile token."""
    made = idl.certify(
        idl.Lens(zoo.build("gpt2")),
        IDS,
        layers=1,
        heads=[0, 1],
        queries=[0, 4, 15, 23],
        order=True,
        tolerance=0,
    )
    hostile = pl.when(pl.col("key") == 3).then(pl.lit(SCRIPT)).otherwise(pl.col("token"))
    return replace(made, table=made.table.with_columns(hostile.alias("token")))


@pytest.fixture(scope="module")
def head(bundled):
    """All rows of one head, with the order of keys."""
    return idl.certify(bundled, TEXT, layers=3, heads=7, order=True, tolerance=0)


def test_every_interval_holds_the_weight_and_every_alternative(head, bundled):
    table = head.table
    assert ((table["lo"] <= table["weight"]) & (table["weight"] <= table["hi"])).all()
    captured = next(bundled.capture(TEXT, weights=True))
    seen = next(one for one in captured.heads if (one.layer, one.head) == (3, 7))
    n = len(seen.weights)
    assert len(table) == n * n
    assert (head.rows["simplex_nullity"] == n - 33).all()
    lo, hi, least = (
        torch.tensor(table[name].to_list()).view(n, n) for name in ("lo", "hi", "minimum_norm")
    )
    order = head.order
    query, above, below = (
        torch.tensor(order[name].to_list()) for name in ("query", "above", "below")
    )
    drawn = iterate_alternatives(
        seen.weights,
        seen.projected,
        20,
        method="uniform",
        generator=torch.Generator().manual_seed(0),
    )
    for other in drawn:
        assert (other >= lo - 1e-7).all()
        assert (other <= hi + 1e-7).all()
        assert (other[query, above] > other[query, below]).all(), (
            "certified pairs are never reversed"
        )
        assert (least.square().sum(-1) <= other.square().sum(-1) + 1e-9).all()
    tops = [(row, top) for row, top in enumerate(head.rows["certified_top"]) if top is not None]
    assert tops, "some queries of this text have a certain first key"
    assert all(seen.weights[row].argmax() == top for row, top in tops)


def test_a_row_alone_is_that_row_of_its_head_and_its_shares_sum_to_one(one, head, bundled):
    chosen = idl.certify(bundled, TEXT, layers=3, heads=7, queries=["the", 0], tolerance=0)
    names = dict(head.rows.select("query", "query_token").iter_rows())
    places = [0] + [place for place, name in names.items() if name == "the"]
    assert chosen.rows["query"].to_list() == places
    expected = head.table.filter(pl.col("query").is_in(places))
    assert_frame_equal(chosen.table, expected, abs_tol=1e-8)
    assert chosen.order.is_empty(), "no order is certified unless it is asked for"
    assert chosen.rows["certified_pairs"].is_null().all()
    assert (
        chosen.rows["certified_top"].to_list()
        == head.rows["certified_top"].gather(places).to_list()
    )
    assert chosen.summary().numbers["certified_pairs"] is None
    assert "of all pairs of keys" in head.summary().text
    assert "of all pairs of keys" not in chosen.summary().text
    assert one.table["norm_share"].sum() == pytest.approx(1)
    assert one.table["contribution"].sum() == pytest.approx(1)
    assert set(one.table["query_token"]) == {"village"}


def test_short_texts_are_points(bundled):
    found = idl.certify(bundled, "A short one.", layers=0, heads=0, tolerance=0)
    assert found.table["pinned"].all()
    assert (found.table["hi"] - found.table["lo"]).max() < 1e-8
    assert (found.rows["simplex_nullity"] == 0).all()
    assert "Pinned, the same in every alternative: all " in found.summary().text
    assert "The widest range" not in found.summary().text


def test_rows_of_a_decoder_have_their_own_null_spaces():
    lens = idl.Lens(zoo.build("gpt2"))
    found = idl.certify(
        lens,
        {"input_ids": torch.arange(5, 30)[None]},
        layers=0,
        heads=1,
        order=True,
        tolerance=0,
    )
    assert (found.table["key"] <= found.table["query"]).all()
    assert found.rows["simplex_nullity"].to_list() == [max(0, row + 1 - 9) for row in range(25)]
    assert found.rows["pairs"].to_list() == [(row + 1) * row // 2 for row in range(25)]
    first = found.rows.filter(pl.col("simplex_nullity") == 0)["query"]
    assert found.table.filter(pl.col("query").is_in(first.implode()))["pinned"].all()
    words = found.by_query()
    tops = [None if top is None else found.table.filter(query=query, key=top)["token"].item()
            for query, top in found.rows.select("query", "certified_top").iter_rows()]  # fmt: skip
    assert words["first in every alternative"].to_list() == tops
    heads = found.by_head().row(0, named=True)
    assert heads["mean_width"] == pytest.approx(found.table.select(views.WIDTH.mean()).item())
    assert heads["certified_pairs"] == len(found.order) / found.rows["pairs"].sum()


def test_images_have_positions_for_tokens():
    lens = idl.Lens(zoo.build("vit"))
    item = lens.read(zoo.example("vit"))[0]
    found = idl.certify(lens, item, layers=0, heads=0, queries=[0, 3], tolerance=0)
    assert found.rows["query"].to_list() == [0, 3]
    assert found.table["token"][0] == "[CLS]"
    assert (
        (found.table["lo"] <= found.table["weight"]) & (found.table["weight"] <= found.table["hi"])
    ).all()
    others = idl.alternatives(lens, item, layers=0, heads=0, starts=1)
    assert others.table.drop_nulls("hidden_change")["hidden_change"].max() < 1e-4


def test_the_finding_of_one_row_in_words(one):
    most = one.table.sort("lo").row(-1, named=True)
    certain = one.table["lo"].sum()
    words, numbers = one.summary().text, one.summary().numbers
    assert words.startswith(
        f"With the head's output the same, exactly, at least {int(100 * certain)} % of the attention of 'village' "
        f"(query 4, layer 3, head 10) is certain to stay on its keys; the most on '{most['token']}' (key "
        f"{most['key']}), which keeps at least {int(100 * most['lo'])} % "
        f"of the row and brings {100 * most['norm_share']:.0f} % of what all "
        "keys add to the head's output, by vector length."
    )
    assert numbers["certain_mass"] == pytest.approx(certain)
    assert sum(numbers[verdict] for verdict in VERDICTS) == pytest.approx(1, abs=1e-5)
    for verdict in VERDICTS:
        held = one.table.filter(verdict=verdict)["weight"].sum()
        assert numbers[verdict] == pytest.approx(held)
        assert (f"{100 * held:.0f} % is {verdict.replace(',', ', on keys with a')}" in words) == (
            held >= 0.0005
        )


def test_the_finding_of_a_row_of_which_nothing_is_certain(one):
    nothing = replace(one, table=one.table.with_columns(lo=pl.lit(0.0)))
    first = nothing.summary().text.splitlines()[0]
    assert first == (
        "With the head's output the same, exactly, none of the attention of 'village' (query 4, layer 3, head 10) is "
        "certain to stay on its keys."
    )


def test_a_key_with_weight_that_adds_little_is_named(one):
    plain = replace(one, table=one.table.with_columns(norm_share="weight"))
    assert "Attention is parked" not in plain.summary().text
    share = pl.when(key=0).then(0.09).otherwise(0.5)
    parked = replace(one, table=one.table.with_columns(weight=pl.lit(0.5), norm_share=share))
    said = "Attention is parked: '[CLS]' (key 0) has 50 % of the attention of 'village' (query 4, layer 3, head 10)"
    more = "by vector length: more than an even share (2.3 %), but far less than its weight."
    words = f"{said}, and brings 9 % of what all keys add to the head's output, {more}"
    assert words in parked.summary().text
    tiny = pl.when(key=0).then(0.01).otherwise(0.5)
    less = replace(parked, table=parked.table.with_columns(norm_share=tiny))
    assert f"{said}, and brings only 1 % of what all keys add " in less.summary().text


def test_masked_rows_have_their_own_keys(found):
    assert (found.table["key"] <= found.table["query"]).all()
    rows = found.by_query()
    assert rows["keys"].to_list() == [1, 5, 16, 24] * 2
    first = found.table.filter(query=0).row(0, named=True)
    assert (first["lo"], first["removal"], first["verdict"]) == (1.0, None, VERDICTS[0])
    short = rows.filter(pl.col("query") <= 4)
    assert short["certain_mass"].to_list() == pytest.approx([1.0] * 4), (
        "five keys and eight values: nothing can move"
    )
    words = found.summary().text
    assert words.startswith("With the head's output the same, exactly, at least ")
    assert " of the attention of 8 rows is certain to stay on its keys on average: " in words
    last = rows.sort("certain_mass").row(0, named=True)
    assert (
        f"{100 * last['certain_mass']:.0f} % for '{last['query_token']}' (query {last['query']},"
        in words
    )


def test_lines_show_every_visible_token_with_its_mark_in_the_terminal(found, one, capsys):
    found.show()
    shown = capsys.readouterr().out
    assert shown.count("determined, small share") >= 2, "a legend in words"
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
    assert f"{top['token']}[{sign}{100 * top['weight']:.0f}%]" in tokens
    colored = StringIO()
    Console(file=colored, width=4000, force_terminal=True, color_system="standard").print(
        line.text()
    )
    assert "\x1b[" in colored.getvalue()


def test_a_notebook_shows_the_lines_with_hostile_tokens_as_text(found):
    page = replace(found, table=found.table.with_columns(token=pl.lit(SCRIPT)))._repr_html_()
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page
    assert page.count('<figure class="token-line">') == 1


def test_charts_draw_the_table(found, tmp_path):
    charts = found.charts()
    maps = [f"widths_text0_layer1_head{head}_decoder" for head in (0, 1)]
    assert list(charts) == ["intervals", "axes", "certain_by_head", *maps]
    bars, ticks = marks(charts["intervals"])["bar"][0], marks(charts["intervals"])["tick"][0]
    assert bars == ticks
    assert len(bars) == len(found.table)
    drawn = pl.DataFrame(bars, infer_schema_length=None).filter(row=3)
    expected = found.table.filter(head=0, query=23).sort("weight", descending=True)
    for name in ("weight", "lo", "hi", "norm_share", "effective", "minimum_norm"):
        assert drawn[name].to_list() == pytest.approx(expected[name].to_list(), rel=1e-5, abs=1e-12)
    certain = found.order.filter(head=0, query=23)
    for key, above, below in drawn.select("key", "above", "below").iter_rows():
        assert {int(one) for one in above.split(",") if one} == set(
            certain.filter(above=key)["below"]
        )
        assert {int(one) for one in below.split(",") if one} == set(
            certain.filter(below=key)["above"]
        )
    offered = drop_downs(charts["intervals"])
    assert len(offered["Row"]) == 8
    assert offered["Compare with key"] == [None, *range(24)]
    plain = drop_downs(views.bars(found.table, found.order.clear()))
    assert "Compare with key" not in plain
    cells = pl.DataFrame(marks(charts[maps[1]])["rect"][0])
    widths = found.table.filter(head=1).select(views.WIDTH)["width"].to_list()
    assert len(cells) == 1 + 5 + 16 + 24, "hidden keys stay empty"
    assert cells["value"].to_list() == pytest.approx(widths, rel=1e-3, abs=1e-9)
    points = pl.DataFrame(marks(charts["axes"])["point"][0], infer_schema_length=None)
    assert len(points) == len(found.table)
    assert points["certain"].max() <= 1 + 1e-9
    assert found.save_figures(tmp_path, ["svg"])


def test_the_positions_of_an_image_are_counted_once_a_layer(monkeypatch):
    read, seen = TextHeads.read, []
    monkeypatch.setattr(
        TextHeads, "read", lambda heads, place: seen.append(place) or read(heads, place)
    )
    study = CertifyStudy(
        idl.Lens(zoo.build("vit")), zoo.example("vit"), CertifySettings(queries=("[CLS]", 3))
    )
    assert len(seen) == len({(place.text, place.site.layer) for (place,) in study.heads.parts})
    assert {tuple(rows) for _, rows in study.parts} == {(0, 3)}
    assert len(study.parts) == 4 * len(seen), "four heads a layer"


def test_a_page_holds_whole_rows_and_says_what_it_leaves_out(found, monkeypatch):
    monkeypatch.setattr(views, "CELLS", 30)
    assert views.within_page(found.table)["query"].unique().to_list() == [0, 4, 15], (
        "1 + 5 + 16 weights"
    )
    section = found.sections()[1]
    assert section.note.startswith("The first 3 of 8 rows")
    monkeypatch.setattr(views, "CELLS", 0)
    assert len(views.within_page(found.table)) == 1, "a page is never empty"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pin_tolerance": 1.0}, "expected pin_tolerance below 1"),
        (
            {"queries": "absent"},
            r"text 0 has no token or position 'absent' .* its tokens are \[CLS\] nobody",
        ),
        ({"queries": 900}, "no token or position 900"),
        ({"pin_tolerance": -1.0}, "expected pin_tolerance of at least 0.* got -1.0"),
        ({"layers": 6}, "the model has layers 0 to 5; got 6"),
    ],
)
def test_bad_options(bundled, options, message):
    with pytest.raises(InputError, match=message):
        idl.certify(bundled, TEXT, **options)
