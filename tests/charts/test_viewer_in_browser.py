"""The viewer with a head's space: what the page works out agrees with the measures, by pointer, keys and address."""

import json
from pathlib import Path

import pytest
import torch

from helpers.browsing import Visit
from helpers.heads import normals, seeded, softmax_of
from helpers.pages import SCRIPT, Reported
from identilens import charts
from identilens.charts.packing import HeadSpace
from identilens.charts.page import Section, render_page
from identilens.charts.viewer import TokenMap
from identilens.linalg import ProjectedValues
from identilens.measures.attention.intervals import attention_intervals
from identilens.runs.files import write_text
from identilens.runs.provenance import Identity, provenance
from identilens.runs.result import Finding

N, RANK = 24, 5
RULES = {
    "within": 0.5,
    "even": 1.0,
    "floor": 0.5,
    "verdicts": [(sign, f"kind, {sign}") for sign in "●○▲△·"],
}  # fmt: skip
TOKENS = ["[CLS]", SCRIPT, *(f"word{at}" for at in range(N - 3)), "##end"]


def made(layer, head, masked=False):
    generator = seeded(10 * layer + head)
    T = normals(generator, N, RANK)
    scores = 2 * normals(generator, N, N)
    visible = torch.ones(N, N).tril().bool() if masked else None
    raw = softmax_of(scores, visible)
    layers = {"raw": raw} | (
        {"effective": ProjectedValues.of(T).effective(raw, visible)} if masked else {}
    )
    choices = {"text": 0, "kind": "decoder" if masked else "encoder", "layer": layer, "head": head}
    space = HeadSpace(ProjectedValues.of(T).compact, RANK, visible, RULES)
    return TokenMap(
        choices, layers, TOKENS, TOKENS, "A note.", {"null": ("raw", "effective")}, head, space
    )


@pytest.fixture(scope="module")
def maps():
    heads = [made(layer, head) for layer in range(2) for head in range(3)]
    return [*heads, made(0, 0, masked=True)]


@pytest.fixture(scope="module")
def path(maps, tmp_path_factory):
    record = provenance("audit", Identity({}, ["a"]), {})
    section = Section("maps", "Maps", maps=maps)
    page = Reported("Audit", "made up", Finding("A finding."), record, [section])
    path = tmp_path_factory.mktemp("viewer") / "page.html"
    write_text(path, render_page(page))
    return path


def title(visit):
    return visit.page.inner_text("#maps .viewer-title")


def bars(visit):
    """The keys of the locked row with weight, lo and hi, once all are worked out."""
    visit.page.wait_for_selector("#maps .viewer-row[data-ready=true]")
    rows = visit.page.eval_on_selector_all(
        "#maps .row-keys tbody tr", "rows => rows.map((one) => ({...one.dataset}))"
    )
    return {
        int(row["key"]): (float(row["weight"]), float(row["lo"]), float(row["hi"])) for row in rows
    }


def check_intervals(found, one, query):
    visible = None if one.space.visible is None else one.space.visible[query]
    values = ProjectedValues(one.space.values, RANK)
    bounds = attention_intervals(one.layers["raw"][query], values, visible=visible)
    assert set(found) == set(range(N) if visible is None else range(query + 1))
    for key, (weight, lo, hi) in found.items():
        expected = [float(part[key]) for part in (bounds.weights, bounds.lo, bounds.hi)]
        assert [weight, lo, hi] == pytest.approx(expected, abs=3e-3)


def test_a_click_gives_the_intervals_of_the_row(browser, path, maps):
    visit = Visit(browser, path)
    assert title(visit) == "Layer 0, head 2", "the most interesting of all"
    canvas = visit.page.locator("#maps canvas[data-layer=raw]")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    query = int(visit.page.inner_text("#maps .viewer-row h3").split("query ")[1].rstrip(")"))
    check_intervals(bars(visit), maps[2], query)
    visit.page.keyboard.press("ArrowDown")
    visit.page.wait_for_selector("#maps .viewer-title:text-is('Layer 1, head 2')")
    check_intervals(bars(visit), maps[5], query)
    visit.page.keyboard.press("ArrowLeft")
    visit.page.wait_for_selector("#maps .viewer-title:text-is('Layer 1, head 1')")
    check_intervals(bars(visit), maps[4], query)
    visit.page.keyboard.press("Escape")
    assert visit.page.locator("#maps .viewer-row").is_hidden()
    visit.close()


def test_near_a_boundary_the_page_gives_no_verdict(browser):
    page = browser.new_page()
    page.add_script_tag(path=Path(charts.__file__).parent / "templates" / "viewer" / "space.js")
    rules = {"within": 0.5, "even": 1.0, "floor": 0.5}
    for weight, lo, hi, share, expected in (
        (0.4, 0.3, 0.5, 0.5, 0),  # far from every boundary
        (0.4, 0.209, 0.5, 0.5, None),  # lo within 0.01 of half the weight
        (0.4, 0.211, 0.5, 0.5, 0),
        (0.4, 0.3, 0.591, 0.5, None),  # hi within 0.01 of one and a half of it
        (0.4, 0.0, 0.9, 0.5, 2),
        (0.4, 0.0, 0.9, 0.105, None),  # the share within a tenth of an even one
        (0.005, 0.0, 0.02, 0.01, 4),
        (0.005, 0.0, 0.045, 0.01, None),
    ):
        call = f"verdictAbout({weight}, {lo}, {hi}, {share}, 10, {json.dumps(rules)})"
        assert page.evaluate(call) == expected, (weight, lo, hi, share)
    page.close()


def test_proven_ends_are_rounded_outward(browser):
    page = browser.new_page()
    page.add_script_tag(path=Path(charts.__file__).parent / "templates" / "viewer" / "canvas.js")
    for lo, hi, expected in (
        (0.1239, 0.1231, "0.123 to 0.124"),
        (0.125, 0.125, "0.125 to 0.125"),
        (0.125 - 1e-15, 0.125 + 1e-15, "0.125 to 0.125"),  # rounding of sums
        (0.00069, 0.9991, "0 to 1"),
        (0.00046, 0.00042, "4e−4 to 5e−4"),
        (-0.1231, 1.234, "−0.124 to 1.24"),
        (9.99, 9.991, "9.99 to 10"),
        (0, 1, "0 to 1"),
    ):
        assert page.evaluate(f"interval({lo}, {hi})") == expected
    assert page.evaluate("interval(0.1239, 0.1231, 0)") == "0.124 to 0.123"
    page.close()


def test_effective_attention_and_certain_mass_are_worked_out(browser, path, maps):
    visit = Visit(browser, path)
    visit.page.get_by_role("button", name="Side by side").click()
    for name in ("norm share", "certain"):
        visit.layer(name)
    visit.page.wait_for_selector("#maps .viewer[data-certain], #maps-maps[data-certain]")
    visit.page.locator("#maps canvas[data-layer=certain]").focus()
    visit.page.keyboard.press("ArrowDown")
    shown = dict(part.rsplit(" ", 1) for part in visit.read().split(": ")[1].split(", "))
    values = ProjectedValues(maps[2].space.values, RANK)
    raw = maps[2].layers["raw"]
    sizes = raw[0] * values.compact.norm(dim=-1)
    expected = {
        "raw": raw[0, 0], "effective": values.effective(raw)[0, 0], "norm share": sizes[0] / sizes.sum(),
        "certain": attention_intervals(raw[0], values).lo[0],
    }  # fmt: skip
    for name, value in expected.items():
        assert float(shown[name].replace("−", "-")) == pytest.approx(float(value), abs=3e-3), name
    visit.close()


def test_wheel_keys_and_drag_zoom_and_pan(browser, path):
    visit = Visit(browser, path)

    def place():
        visit.page.wait_for_timeout(400)
        return [float(part) for part in visit.page.url.split("zoom=")[1].split("%2C")]

    canvas = visit.page.locator("#maps canvas[data-layer=raw]")
    canvas.focus()
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    visit.page.mouse.move(box["x"] + 0.7 * box["width"], box["y"] + 200)
    visit.page.mouse.wheel(0, -480)
    zoom, _, key = place()
    assert zoom == pytest.approx(4, rel=0.01)
    assert key > 0
    visit.page.mouse.down()
    visit.page.mouse.move(box["x"] + 0.7 * box["width"] + 150, box["y"] + 200, steps=4)
    visit.page.mouse.up()
    assert place()[2] < key
    assert visit.page.locator("#maps .viewer-row").is_hidden(), "a drag is no click"
    visit.page.keyboard.press("0")
    visit.page.wait_for_timeout(400)
    assert "zoom=" not in visit.page.url
    visit.close()
