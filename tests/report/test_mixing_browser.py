import numpy as np
import pytest

from helpers.mixings import random_mixing
from helpers.visit import Visit, drawn
from identilens.measures.mixing import by_relative_position
from identilens.report import write_mixing_report

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def report(mixing_result, tmp_path_factory):
    return write_mixing_report(mixing_result, tmp_path_factory.mktemp("mixing") / "report.html", track="harbour")


def test_opens_on_the_tracked_token(page, mixing_result):
    assert page.input_value("#token-position") == str(mixing_result.names(0, "encoder").index("harbour"))
    assert "“harbour”" in page.inner_text("#token-note")


def test_the_map_follows_text_kind_token_and_measure(page, mixing_result):
    for text, kind, position, measure in (
        (0, "encoder", 3, "contribution"),
        (0, "cross", 5, "raw_rollout"),
        (1, "decoder", 2, "contribution"),
        (1, "cross", 0, "effective_rollout"),
    ):
        page.select_option("#token-text", str(text))
        page.select_option("#token-kind", kind)
        page.select_option("#token-position", str(position))
        page.select_option("#token-measure", measure)
        expected = mixing_result.array(text, kind, measure)[:, position]
        np.testing.assert_allclose(drawn(page, "token-map"), expected, atol=1e-5)
    assert "from itself" not in page.inner_text("#token-note"), "cross attention has no own token"


def test_a_script_in_a_token_is_text(page):
    page.select_option("#token-text", "0")
    page.select_option("#token-kind", "encoder")
    ticks = page.locator("#token-map .xtick text").all_text_contents()
    assert ticks[1].startswith("<script>")
    page.select_option("#token-position", label=f"1: {SCRIPT}")
    assert f"“{SCRIPT}”" in page.inner_text("#token-note")
    assert page.locator("#token-map script, #token-note script, .subject script").count() == 0


def test_colours_reach_to_the_own_token_when_asked(page, mixing_result):
    page.select_option("#token-text", "1")
    page.select_option("#token-kind", "decoder")
    page.select_option("#token-position", "0")
    page.select_option("#token-measure", "contribution")
    page.select_option("#token-scale", "all")
    assert drawn(page, "token-map", "zmax") == pytest.approx(1)
    page.select_option("#token-scale", "context")
    assert drawn(page, "token-map", "zmax") < 1e-3, "the first token of a decoder sees itself only"


def test_figures_follow_the_kind(page, mixing_result):
    page.select_option("#own-kind", "decoder")
    own = mixing_result.own().filter(kind="decoder").group_by("layer", maintain_order=True)
    assert drawn(page, "own-boxes", "median") == pytest.approx(
        [rows["contribution"].median() for _, rows in own], rel=1e-4
    )
    page.select_option("#neighbours-kind", "decoder")
    rows = by_relative_position(mixing_result.table).filter(kind="decoder", layer=1)
    assert drawn(page, "neighbours-positions", "x") == rows["offset"].to_list()
    assert drawn(page, "neighbours-positions", "y") == pytest.approx(rows["share"].to_list(), rel=1e-4)


def test_correlations_can_be_switched(page):
    before = drawn(page, "rollout-correlation", "y")
    page.select_option("#rollout-pairs", "all")
    page.select_option("#rollout-method", "spearman")
    assert drawn(page, "rollout-correlation", "y") != before
    # The made-up raw rollout is the square of the contribution.
    assert drawn(page, "rollout-correlation", "y") == pytest.approx([1] * 3)


def test_parts_of_speech_layer_by_layer(browser, tagged_mixing, tmp_path):
    opened = Visit(browser, write_mixing_report(tagged_mixing, tmp_path / "tagged.html"))
    page = opened.page
    assert page.input_value("#speech-layer") == "3"
    last = drawn(page, "speech-boxes", "median")
    assert last == sorted(last, reverse=True)
    page.select_option("#speech-layer", "1")
    assert drawn(page, "speech-boxes", "median") != last
    ticks = page.locator("#speech-boxes .ytick text").all_text_contents()
    assert any(tick.startswith("<script>") for tick in ticks)
    assert opened.complaints == []
    page.close()


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark"}, {"has_touch": True, "is_mobile": True}])
def test_a_phone_shows_the_page_without_scrolling_sideways(browser, report, options):
    opened = Visit(browser, report, **options)
    assert opened.width_on_a_phone() <= 400
    assert opened.page.locator("#failure").is_hidden()
    assert opened.complaints == []
    opened.page.close()


def test_one_token_and_no_texts_open_without_complaint(browser, tmp_path):
    for budget in (10**6, 1):
        result = random_mixing([["x"]], layers=1)[1]
        opened = Visit(browser, write_mixing_report(result, tmp_path / f"{budget}.html", text_budget=budget))
        assert opened.complaints == []
        assert opened.page.locator("#failure").is_hidden()
        opened.page.close()
