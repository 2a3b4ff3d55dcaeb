import json

import polars as pl

from identilens.charts import choose, lines, rule, scatter
from identilens.charts.encoding import field

FRAME = pl.DataFrame(
    {
        "layer": [0, 1, 0, 1],
        "rate.mean[0]": [0.5, float("nan"), 1.0, float("inf")],
        "probe": ["\u202eb", "b", "a", "a"],
    }
)


def rows(spec, number=0):
    return list(spec["datasets"].values())[number]


def marks(spec):
    return [layer["mark"]["type"] for layer in spec["layer"]]


def test_lines_draw_every_value_once_and_break_where_there_is_none():
    spec = lines(
        FRAME, "layer", "rate.mean[0]", "probe", labels={"rate.mean[0]": "Rate"}, title="T"
    ).to_dict()
    y = field("rate.mean[0]")
    assert [row[y] for row in rows(spec)] == [0.5, None, 1.0, None]
    assert marks(spec) == ["line", "point"]
    encoding = spec["layer"][0]["encoding"]
    assert encoding["y"]["field"] == y
    assert encoding["y"]["title"] == "Rate"
    assert encoding["color"]["scale"]["domain"] == ["\\u202eb", "b", "a"]
    assert spec["width"] == "container"
    assert spec["title"] == "T"
    json.dumps(spec, allow_nan=False)


def test_of_very_many_rows_every_second_third_is_drawn_and_the_title_says_so():
    """A page with 440,000 points took 1.6 GB, and no browser draws it."""
    many = pl.DataFrame({"x": range(50_001), "y": range(50_001)})
    drawn = scatter(many, "x", "y", title="All heads").to_dict()
    assert drawn["title"] == "All heads (one of every 3 of 50,001 values)"
    (values,) = drawn["datasets"].values()
    assert [row["x"] for row in values] == list(range(0, 50_001, 3))
    assert scatter(many.head(20_000), "x", "y", title="All heads").to_dict()["title"] == "All heads"


def test_a_choice_filters_every_layer_and_leaves_what_has_no_such_column():
    frame = FRAME.with_columns(kind=pl.Series(["encoder", "cross", "encoder", "cross"]))
    chart = rule(lines(frame, "layer", "rate.mean[0]"), x=64, label="d_v")
    spec = choose(chart, "kind", "Attention", ["encoder", "cross"]).to_dict()
    bind = spec["params"][0]["bind"]
    assert (bind["options"], spec["params"][0]["value"]) == (["encoder", "cross"], "encoder")

    def leaves(part):
        return (
            [leaf for one in part["layer"] for leaf in leaves(one)] if "layer" in part else [part]
        )

    found = leaves(spec)
    assert len(found) == 4
    assert all("!isDefined(datum['kind'])" in leaf["transform"][-1]["filter"] for leaf in found)
    assert {"label": "d_v"} in [row for data in spec["datasets"].values() for row in data]
