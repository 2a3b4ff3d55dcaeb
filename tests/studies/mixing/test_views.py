"""What charts, finding and report of a mixing result show: the numbers of its tables, and tokens as they are."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch

from helpers.audits import SCRIPT, words
from helpers.browsing import Visit
from helpers.charts import drop_downs
from helpers.mixings import mixing_of, random_mixing, tagged_mixing, tricky_mixing
from identilens.errors import InputError
from identilens.measures.mixing import boxes_by_tag, by_relative_position
from identilens.studies.mixing import views
from identilens.studies.mixing.single import MOST_INPUTS, telling_tokens, token_maps, token_rows


@pytest.fixture(scope="module")
def tagged():
    return tagged_mixing()


@pytest.fixture(scope="module")
def tricky():
    return tricky_mixing()


@pytest.fixture(scope="module")
def report(tricky, tmp_path_factory):
    return tricky.tracking("harbour").to_html(
        tmp_path_factory.mktemp("mixing") / "new" / "report.html"
    )


def rows(chart):
    """Return the rows of every data set of a chart."""
    return [row for held in chart.to_dict()["datasets"].values() for row in held]


def offered(chart):
    """Return what the drop-downs of a chart offer, by the column they choose by."""
    params = chart.to_dict().get("params", ())
    return {
        one["name"].removeprefix("choose_"): one["bind"]["options"]
        for one in params
        if "bind" in one
    }


def test_charts_by_name(tagged, tricky):
    names = [
        "own_contribution", "not_largest", "neighbours", "relative_positions", "class_token", "class_token_separator",
        "tracked_token", "part_of_speech", "own_share", "rollout_correlation",
    ]  # fmt: skip
    assert list(tagged.charts()) == names
    assert "part_of_speech" not in tricky.charts()
    kinds = {
        name
        for name, chart in tricky.charts().items()
        if offered(chart).get("kind") == ["encoder", "decoder"]
    }
    assert kinds == {*names[:4], "own_share", "rollout_correlation"}


def test_boxes_and_bars_are_the_numbers(tricky):
    charts = tricky.charts()
    boxes = {(row["kind"], row["layer"]): row["median"] for row in rows(charts["own_contribution"])}
    shares = {
        (row["kind"], row["layer"]): row["not_largest"] for row in rows(charts["not_largest"])
    }
    for row in tricky.by_layer().iter_rows(named=True):
        assert boxes[row["kind"], row["layer"]] == pytest.approx(row["median_own"], rel=1e-5)
        assert shares[row["kind"], row["layer"]] == pytest.approx(row["not_largest"], rel=1e-5)
    assert len(boxes) == len(shares) == 6


@pytest.mark.parametrize("name", ["own_share", "rollout_correlation"])
def test_lines_are_told_apart_in_black_and_white_too(tagged, name):
    encodings = [one["encoding"] for one in tagged.charts()[name].to_dict()["layer"]]
    (dashed,) = [one for one in encodings if "strokeDash" in one]
    assert dashed["strokeDash"]["field"] == dashed["color"]["field"]
    assert len(dashed["strokeDash"]["scale"]["domain"]) > 1


def test_boxes_stand_on_an_axis_from_zero_to_the_highest(tagged):
    layers = tagged.charts()["own_contribution"].to_dict()["layer"]
    [domain] = {tuple(one["encoding"]["y"]["scale"]["domain"]) for one in layers}
    assert domain == (
        0,
        pytest.approx(
            max(row["high"] for row in rows(tagged.charts()["own_contribution"])), rel=0.1
        ),
    )


def test_context_breaks_at_the_own_token_and_offers_what_is_near(tagged):
    chart = tagged.charts()["relative_positions"]
    drawn = {(row["layer"], row["offset"]): row for row in rows(chart)}
    for row in by_relative_position(tagged.table).iter_rows(named=True):
        assert drawn[row["layer"], row["offset"]]["share"] == pytest.approx(row["share"], rel=1e-5)
        assert drawn[row["layer"], row["offset"]]["near"] == (abs(row["offset"]) <= 20)
    assert [drawn[layer, 0]["share"] for layer in (1, 2, 3)] == [None] * 3
    assert offered(chart) == {"near": [True, None]}
    assert offered(random_mixing([words(9)])[1].charts()["relative_positions"]) == {}


def test_the_class_token_is_counted_from_itself_and_from_the_separator(tagged):
    charts = tagged.charts()
    for name, first in (("class_token", 1), ("class_token_separator", -22)):
        drawn = [row for row in rows(charts[name]) if row["layer"] == 1]
        assert min(row["offset"] for row in drawn) == first
        assert sum(row["share"] for row in drawn) == pytest.approx(1, rel=1e-4)


def test_parts_of_speech_open_on_the_last_layer(tagged):
    chart = tagged.charts()["part_of_speech"]
    assert offered(chart) == {"layer": [3, 2, 1]}
    boxes = boxes_by_tag(tagged.own(), tagged.tags)
    drawn = {(row["layer"], row["label"]): row["median"] for row in rows(chart)}
    assert len(drawn) == len(boxes)
    for row in boxes.iter_rows(named=True):
        assert drawn[row["layer"], f"{row['tag']} ({row['tokens']})"] == pytest.approx(
            row["median"], rel=1e-5
        )


def test_tags_of_an_encoder_decoder_are_those_of_its_source(tricky):
    tags = tricky.own().filter(kind="encoder", layer=1).select("text", "position", tag=pl.lit("NN"))
    speech = replace(tricky, tags=tags).series.speech
    assert speech["tokens"].to_list() == [len(tags)] * 3


def test_the_tracked_token_is_drawn(tagged):
    chart = tagged.tracking("word20").charts()["tracked_token"]
    assert offered(chart) == {"state": ["21: word20"]}
    drawn = {(row["layer"], row["input"]): row["contribution"] for row in rows(chart)}
    names = tagged.names(1)
    for (layer, position), value in np.ndenumerate(tagged.array(1)[:, 21]):
        assert drawn[layer + 1, f"{position}: {names[position]}"] == pytest.approx(value, rel=1e-5)
    context = np.delete(tagged.array(1)[:, 21], 21, axis=1)
    color = chart.to_dict()["layer"][0]["encoding"]["color"]
    assert color["scale"]["domain"] == pytest.approx([0, context.max()]), (
        "the own token would take all the colour"
    )
    with pytest.raises(
        InputError, match=r"no text contains the token 'boat'; tokens such as '\[CLS\]'"
    ):
        tagged.tracking("boat")


def test_words_worth_drawing(tricky):
    own = tricky.own().filter(kind="encoder")
    last = tricky.array(1, "encoder")[-1].diagonal()
    inner = range(1, 8)
    telling = [0, min(inner, key=lambda at: last[at]), max(inner, key=lambda at: last[at])]
    assert telling_tokens(own, 1) == telling
    alone = random_mixing([["x"]])[1]
    assert telling_tokens(alone.own()) == [0]
    states = offered(tricky.charts()["tracked_token"])["state"]
    assert [int(state.split(":")[0]) for state in states] == telling_tokens(own)


def test_correlations_can_be_switched(tagged):
    chart = tagged.charts()["rollout_correlation"]
    assert offered(chart) == {"method": ["pearson", "spearman"], "pairs": ["context", "all"]}
    ranks = [
        row["value"]
        for row in rows(chart)
        if (row["rollout"], row["method"]) == ("raw", "spearman")
    ]
    # The made-up raw rollout is the square of the contribution.
    assert ranks == pytest.approx([1] * 6)


def test_maps_hold_every_number_of_the_texts_that_fit(tricky):
    maps = token_maps(tricky.series, (1, 2))
    assert len(maps) == sum(
        len(tricky.names(text, kind)) for text in (0, 1) for kind in tricky.kinds
    )
    (first,) = [one for one in maps if one.interest]
    assert (first.choices["kind"], first.choices["token"]) == ("encoder", "2: word1")
    assert list(first.layers) == ["contribution", "raw rollout", "effective rollout"]
    torch.testing.assert_close(
        first.layers["contribution"], torch.tensor(tricky.array(1, "encoder")[:, 2])
    )
    cross = next(one for one in maps if one.choices["kind"] == "cross")
    assert list(cross.keys) == tricky.names(0, "cross", "input")


def test_single_texts_stay_within_their_budget():
    _, result = random_mixing([["a"] * 30, ["b"] * 4, ["c"] * 30, *([["d"] * 3] * 30)])

    def texts(budget, text=0):
        return list(
            dict.fromkeys(
                int(one.choices["text"].split(":")[0])
                for one in token_maps(result.series, (text, 0), budget)
            )
        )

    assert texts(8 * 3 * 16) == [1]
    assert texts(10**9, 25) == [*range(19), 25]
    assert texts(10) == []


def test_no_rollouts_no_tags_no_class_token(tmp_path):
    result = random_mixing([["one", "two", "three"]])[1]
    empty = [pl.lit(None, pl.Float32).alias(name) for name in ("raw_rollout", "effective_rollout")]
    bare = replace(result, table=result.table.with_columns(empty))
    assert "rollout_correlation" not in bare.charts()
    page = bare.to_html(tmp_path / "report.html").read_text("utf-8")
    anchors = [one.anchor for one in bare.sections()]
    assert anchors == ["own", "neighbours", "token", "reading"], "no part without a chart"
    assert "every number of 1 of 1 text, as many as fit." in page
    assert len(bare.summary().text.splitlines()) == 3


def test_the_chart_of_single_tokens_has_the_inputs_that_contribute_most():
    names = [f"word{place}" for place in range(MOST_INPUTS + 20)]
    result = random_mixing([names])[1]
    drawn = token_rows(result.series, 0, [0, 7])
    largest = {
        position: max(result.array(0)[:, [0, 7], position].flatten())
        for position in range(len(names))
    }
    kept = sorted(sorted(largest, key=largest.get)[-MOST_INPUTS:])
    assert drawn["position"].unique().to_list() == kept
    assert drawn.filter(state="7: word7", layer=1)["input"].to_list() == [
        f"{one}: word{one}" for one in kept
    ]


def test_the_finding_says_what_was_found():
    near = np.array([[[0.6, 0.4, 0, 0], [0.2, 0.6, 0.2, 0], [0, 0.2, 0.6, 0.2], [0, 0, 0.4, 0.6]]])
    far = np.array([[[0.2, 0, 0, 0.8], [0.4, 0.2, 0, 0.4], [0.8, 0, 0.2, 0], [0.8, 0, 0, 0.2]]])
    found = mixing_of([np.concatenate([near, far])], [["a", "b", "c", "d"]]).summary()
    sentences = found.text.splitlines()
    assert "60.0 % at layer 1 and 20.0 % at layer 2" in sentences[0]
    assert "another token makes up more in 100.0 % of the states" in sentences[0]
    assert sentences[2].startswith(
        "Of the context in an encoder hidden state, 100 % comes from the tokens next to it"
    )
    assert found.numbers["encoder_next_to_it_last"] == pytest.approx(1 / 8)
    # The made-up effective rollout is 1 less the contribution, so it cannot agree; the raw one is its square.
    assert "does not tell well which context is mixed into encoder hidden states" in sentences[3]
    assert "(raw) and -1.00 (effective) at layer 1 and " in sentences[3]
    assert found.numbers["encoder_own_last"] == pytest.approx(0.2)
    assert found.numbers["encoder_effective_rollout_last"] == pytest.approx(-1)
    assert [value for value, _ in found.headline] == ["60 %", "20 %", "100 %"]


def test_the_finding_keeps_kinds_of_hidden_states_apart():
    own = np.array([[[0.6, 0.4], [0.3, 0.7]]])
    one, other = (
        mixing_of([weights], [["a", "b"]], kind)
        for kind, weights in (("decoder", own), ("encoder", own[..., ::-1]))
    )
    both = replace(one, table=pl.concat([one.table, other.table]), tokens=one.tokens)
    first, second, *_ = both.summary().text.splitlines()
    assert "Of each encoder hidden state" in first
    assert "35.0 % at layer 1 (medians" in first
    assert "Of each decoder hidden state" in second
    assert "65.0 % at layer 1 (medians" in second


def test_one_token_alone():
    charts = random_mixing([["x"]])[1].charts()
    assert set(charts) == {
        "own_contribution",
        "not_largest",
        "tracked_token",
        "own_share",
        "rollout_correlation",
    }


def test_hostile_names_are_text_and_the_page_opens_on_the_tracked_token(report, tricky, browser):
    assert SCRIPT not in report.read_text("utf-8")
    visit = Visit(browser, report, 390, "dark")
    position = tricky.names(0, "encoder").index("harbour")
    maps = visit.page.locator("#token")
    assert (
        maps.get_by_label("Token", exact=True).locator(":checked").inner_text()
        == f"{position}: harbour"
    )
    maps.get_by_label("Token", exact=True).select_option(f"1: {SCRIPT}")
    visit.page.locator("#token canvas[data-layer=contribution]").focus()
    visit.page.keyboard.press("ArrowDown")
    text = visit.page.locator("#token .readout").inner_text()
    assert "contribution " in text
    value = tricky.array(0, "encoder")[0, 1, 0]
    assert float(text.split("contribution ")[1].split(",")[0]) == pytest.approx(value, abs=6e-4), (
        "as rounded for the page"
    )
    own = visit.page.locator("#own-0-controls").get_by_label("Hidden states")
    before = visit.page.locator("#own-0 svg").inner_html()
    own.select_option("decoder")
    visit.page.wait_for_function(
        "old => document.querySelector('#own-0 svg').innerHTML !== old", arg=before
    )
    visit.close()


def test_kinds_are_chosen_in_the_order_of_the_table(tagged):
    kinds = ["vision", "encoder", "qformer", "decoder", "audio", "text"]
    chart = tagged.charts()["own_contribution"]
    frame = pl.DataFrame({"kind": [kind for kind in kinds for _ in range(3)]})
    for _ in range(3):
        assert drop_downs(views._by_kind(chart, frame))["Hidden states"] == kinds
    assert views._by_kind(chart, frame.head(3)) is chart
