"""Views that are declared beside a schema: their charts, sections and words."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl
import pytest

from helpers.charts import drop_downs, marks
from identilens.charts.cells import heat
from identilens.charts.kit import lines, scatter
from identilens.charts.labels import said
from identilens.charts.views import View

TABLE = pl.DataFrame({
    "kind": ["encoder"] * 4 + ["cross"] * 4, "layer": [0, 0, 1, 1] * 2, "head": [0, 1] * 4, "text": [0, 1] * 4,
    "weight": [0.125 * place for place in range(8)], "other": [0.5] * 7 + [None], "empty": [None] * 8,
}, schema_overrides={"empty": pl.Float64})  # fmt: skip


@dataclass
class Shown:
    """What a view asks of a result."""

    table: pl.DataFrame
    words: ClassVar = {"weight": "Weight ({unit}): how much", "other": "Other"}

    def said(self, template):
        return said(template, {"unit": "nats", "missing": None})

    def label(self, column):
        return self.meaning(column).partition(": ")[0]

    def meaning(self, column):
        return "".join(self.said(self.words.get(column, column.capitalize())))

    def frame(self):
        return self.table.filter(kind="encoder")

    def none(self):
        return self.table.clear()

    def drawn(self):
        return {"own": scatter(self.table, "weight", "other")}


SHOWN = Shown(TABLE)


def spec_of(view):
    [chart] = view.charts("name", SHOWN).values()
    return chart.to_dict()


def test_columns_are_called_by_their_labels_and_kinds_are_a_choice():
    view = View(heat, ("head", "layer", "weight"), title="Map ({unit})", look={"domain": (-1, 1)})
    spec = spec_of(view)
    color = spec["layer"][0]["encoding"]["color"]
    assert (spec["title"], color["title"], color["scale"]["domain"]) == (
        "Map (nats)",
        "Weight (nats)",
        [-1, 1],
    )
    assert spec["layer"][0]["encoding"]["x"]["title"] == "Head"
    [chart] = view.charts("name", SHOWN).values()
    assert drop_downs(chart) == {"Kind": ["encoder", "cross"]}
    assert (
        drop_downs(
            *View(heat, ("head", "layer", "weight"), table="frame").charts("", SHOWN).values()
        )
        == {}
    )


def test_means_are_drawn_by_some_columns_which_stand_in_the_tooltip():
    spec = spec_of(View(scatter, ("weight", "other"), by=("kind", "layer"), choices=("layer",)))
    rows = spec["datasets"][spec["data"]["name"]]
    assert [row["weight"] for row in rows] == pytest.approx([0.5625, 0.8125, 0.0625, 0.3125])
    assert [tip["title"] for tip in spec["encoding"]["tooltip"]] == [
        "Weight (nats)", "Other", "Kind", "Layer",
    ]  # fmt: skip
    assert [param["bind"]["name"] for param in spec["params"]] == ["Kind ", "Layer "]


def test_several_columns_in_a_place_are_measures():
    draw = View(lines, ("layer", ("weight", "other"), "measure"), by=("layer",))
    [rows] = marks(*draw.charts("name", SHOWN).values())["line"]
    assert [(row["measure"], row["value"]) for row in rows] == [
        ("Weight (nats)", 0.3125), ("Weight (nats)", 0.5625), ("Other", 0.5), ("Other", 0.5)
    ]  # fmt: skip
    chosen = View(heat, ("head", "layer", ("weight", "other"))).charts("name", SHOWN)
    assert drop_downs(*chosen.values())["Measure"] == ["Weight (nats)", "Other"]


def test_a_section_has_words_chart_and_table_with_what_its_columns_mean():
    text = "Words in {unit}.\nNone of {missing}."
    section = View(scatter, ("weight", "other"), title="Title", text=text, listed=True).section(
        "name", SHOWN
    )
    assert [section.title, section.text] == ["Title", ["Words in nats."]]
    assert section.note == "Weight (nats): how much."
    assert section.labels == {"weight": "Weight (nats)", "other": "Other"}
    assert section.frame.equals(TABLE)


@pytest.mark.parametrize(
    ("view", "charts"),
    [
        (View(scatter, ("weight", "empty")), None), (View(scatter, ("weight", "other"), table="none"), None),
        (View(scatter, ("weight", "empty"), listed=True), 0), (View(method="drawn"), 1),
    ],
)  # fmt: skip
def test_a_section_with_nothing_in_it_is_left_out(view, charts):
    section = view.section("name", SHOWN)
    assert (section and len(section.charts)) == charts


def test_of_very_many_rows_every_second_third_is_drawn_and_the_title_says_so():
    """A page with 440,000 points took 1.6 GB, and no browser draws it."""
    many = pl.DataFrame({"x": range(50_001), "y": range(50_001)})
    drawn = scatter(many, "x", "y", title="All heads").to_dict()
    assert drawn["title"] == "All heads (one of every 3 of 50,001 values)"
    (values,) = drawn["datasets"].values()
    assert [row["x"] for row in values] == list(range(0, 50_001, 3))
    assert scatter(many.head(20_000), "x", "y", title="All heads").to_dict()["title"] == "All heads"
