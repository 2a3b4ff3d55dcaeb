import json

import altair as alt
import polars as pl
import pytest
import torch

from identilens.charts import (
    boxes,
    choose,
    heat,
    intervals,
    lines,
    rule,
    scatter,
    strip,
    theme,
    token_map,
)
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
    spec = lines(FRAME, "layer", "rate.mean[0]", "probe", y_title="Rate", title="T").to_dict()
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


@pytest.mark.parametrize("name", ["a.b", "a[0]", "a'b", 'a"b', "a\\b", "a b"])
def test_fields_are_words_and_stay_apart(name):
    assert field(name).isidentifier()
    assert field(name) != field(name.replace(name[1], "_"))


def test_errors_are_bars_or_bands():
    frame = pl.DataFrame(
        {"x": [0, 1], "y": [1.0, 2.0], "e": [0.1, 0.2], "lo": [0.5, 1.5], "hi": [1.5, 2.5]}
    )
    assert marks(lines(frame, "x", "y", error="e").to_dict()) == ["rule", "line", "point"]
    band = lines(frame, "x", "y", error=("lo", "hi"), points=False).to_dict()
    assert marks(band) == ["area", "line"]
    assert (
        band["layer"][0]["encoding"]["y"]["field"],
        band["layer"][0]["encoding"]["y2"]["field"],
    ) == ("lo", "hi")


def test_log_axes_leave_out_what_they_cannot_show():
    spec = scatter(
        pl.DataFrame({"x": [0, 1, 8], "y": [1e-9, 0.0, 1.0]}), "x", "y", log_x=True, log_y=True
    ).to_dict()
    assert [(row["x"], row["y"]) for row in rows(spec)] == [(None, 1e-9), (1, None), (8, 1.0)]
    assert spec["encoding"]["x"]["scale"]["type"] == spec["encoding"]["y"]["scale"]["type"] == "log"


def test_few_numbers_get_a_symbol_each_and_many_a_gradient():
    few, many = (
        scatter(pl.DataFrame({"x": range(n), "layer": range(n)}), "x", "x", "layer").to_dict()
        for n in (3, 30)
    )
    assert few["encoding"]["color"]["legend"]["values"] == [0, 1, 2]
    assert "legend" not in many["encoding"]["color"]


def test_intervals_and_boxes_span_their_columns():
    frame = pl.DataFrame({"token": ["b", "a"], "lo": [0.0, 0.1], "hi": [0.5, 0.6], "w": [0.2, 0.3]})
    spec = intervals(frame, "token", "lo", "hi", "w").to_dict()
    span = spec["layer"][0]["encoding"]
    assert (span["x"]["field"], span["x2"]["field"], span["y"]["sort"]) == ("lo", "hi", ["b", "a"])
    numbers = {
        name: [float(place)] for place, name in enumerate(("low", "q1", "median", "q3", "high"))
    }
    box = boxes(pl.DataFrame({"layer": [0], **numbers}), "layer", "Share").to_dict()
    ends = [
        (layer["encoding"]["y"]["field"], layer["encoding"].get("y2", {}).get("field"))
        for layer in box["layer"]
    ]
    assert ends == [("low", "high"), ("q1", "q3"), ("median", None)]


def test_of_very_many_rows_every_second_third_is_drawn_and_the_title_says_so():
    """A page with 440,000 points took 1.6 GB, and no browser draws it."""
    many = pl.DataFrame({"x": range(50_001), "y": range(50_001)})
    drawn = scatter(many, "x", "y", title="All heads").to_dict()
    assert drawn["title"] == "All heads (one of every 3 of 50,001 values)"
    (values,) = drawn["datasets"].values()
    assert [row["x"] for row in values] == list(range(0, 50_001, 3))
    assert scatter(many.head(20_000), "x", "y", title="All heads").to_dict()["title"] == "All heads"


def test_equal_frames_give_equal_strips():
    frame = pl.DataFrame({"v": [0.1, 0.2, 0.3], "g": ["a", "a", "b"]})
    assert strip(frame, "v", "g").to_dict() == strip(frame, "v", "g").to_dict()


def test_heat_has_numbers_where_there_is_room_and_colours_that_stretch():
    frame = pl.DataFrame({"head": [0, 1], "layer": [0, 0], "share": [0.2, 0.4]})
    spec = heat(frame, "head", "layer", "share", domain=(0, 1), stretch=True).to_dict()
    assert marks(spec) == ["rect", "text"]
    scale = spec["layer"][0]["encoding"]["color"]["scale"]
    assert (scale["domainMin"]["expr"], scale["domainMax"]["expr"]) == (
        "stretch ? 0.2 : 0",
        "stretch ? 0.4 : 1",
    )
    assert [param["name"] for param in spec["params"]] == ["stretch"]
    signed = heat(
        frame.with_columns(share=pl.col("share") - 0.5), "head", "layer", "share", diverging=True
    ).to_dict()
    assert signed["layer"][0]["encoding"]["color"]["scale"] == {
        "domain": [-0.3, 0.3],
        "domainMid": 0,
    }
    wide = pl.DataFrame({"head": range(40), "layer": [0] * 40, "share": [0.5] * 40})
    assert marks(heat(wide, "head", "layer", "share").to_dict()) == ["rect"]


def test_a_choice_filters_every_layer_and_the_rules_it_names():
    frame = FRAME.with_columns(kind=pl.Series(["encoder", "cross", "encoder", "cross"]))
    chart = rule(lines(frame, "layer", "rate.mean[0]"), x=64, label="d_v", kind="encoder")
    spec = choose(chart, "kind", "Attention", ["encoder", "cross"]).to_dict()
    bind = spec["params"][0]["bind"]
    assert (bind["options"], spec["params"][0]["value"]) == (["encoder", "cross"], "encoder")

    def leaves(part):
        return (
            [leaf for one in part["layer"] for leaf in leaves(one)] if "layer" in part else [part]
        )

    found = leaves(spec)
    assert len(found) == 4
    assert all("choose_kind" in leaf["transform"][-1]["filter"] for leaf in found)
    assert {"kind": "encoder", "label": "d_v"} in [
        row for data in spec["datasets"].values() for row in data
    ]


def test_token_maps_for_print_share_one_scale_and_show_tokens():
    raw = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    spec = token_map(
        {"raw": raw, "null": raw - 0.75}, ["a", ""], ["</script>", "\n"], "Text 0"
    ).to_dict()
    scales = [part["encoding"]["color"]["scale"]["domain"] for part in spec["concat"]]
    assert scales == [[-1.0, 1.0]] * 2
    axis = spec["concat"][0]["encoding"]["x"]["axis"]
    assert axis["labelExpr"] == "key_labels[datum.value]"
    assert {param["name"]: param["value"] for param in spec["params"]}["key_labels"] == [
        "</script>",
        "\\n",
    ]
    assert [row["value"] for row in rows(spec)] == [0.5, 0.5, 0.0, 1.0]


def test_unknown_words_fail():
    with pytest.raises(TypeError, match="x_titel"):
        lines(FRAME, "layer", "layer", x_titel="Layer")


def test_looks_are_valid_vega_lite():
    for dark in (False, True):
        assert alt.Config.from_dict(theme(dark)).to_dict() == theme(dark)


def test_an_axis_is_stretched_only_on_request_and_from_a_domain():
    frame = pl.DataFrame({"layer": [1, 2, 3], "rate": [0.8, 0.9, 0.85]})
    for given in ({"y_domain": (0, 1)}, {"stretch": True}, {}):
        assert "params" not in lines(frame, "layer", "rate", **given).to_dict()


def test_an_axis_can_be_stretched_and_whole_numbers_stay_whole():
    frame = pl.DataFrame({"layer": [1, 2, 3], "rate": [0.8, 0.9, 0.85], "error": [0.02, None, 0.0]})
    chart = rule(
        lines(frame, "layer", "rate", error="error", y_domain=(0, 1), stretch=True),
        y=0.1,
        label="chance",
    )
    spec = chart.to_dict()
    (offer,) = spec["params"]
    assert offer["bind"]["labels"] == ["0 to 1", "stretched to the values"]
    first = spec["layer"][0]["layer"][0]["encoding"]
    assert first["y"]["scale"]["domainMin"] == {"expr": "stretch ? 0.774 : 0"}
    assert first["y"]["scale"]["domainMax"] == {"expr": "stretch ? 0.906 : 1"}
    assert (first["x"]["axis"]["values"], first["x"]["axis"]["format"]) == ([1, 2, 3], ",d")


def test_a_point_tells_its_columns_under_the_titles_of_the_axes():
    frame = pl.DataFrame({"n": [3, 4], "a.rate": [0.5, 1.0], "kind": ["x", "y"], "texts": [7, 9]})
    titles = {"x_title": "Tokens", "y_title": "Rate", "color_title": "Kind of attention"}
    spec = scatter(frame, "n", "a.rate", "kind", also=("texts",), **titles).to_dict()
    told = [
        (tip["title"], tip["field"], tip["type"], tip.get("format"))
        for tip in spec["encoding"]["tooltip"]
    ]
    assert sorted(told) == [
        ("Kind of attention", "kind", "nominal", None),
        ("Rate", field("a.rate"), "quantitative", ".4~g"),
        ("Tokens", "n", "quantitative", None),
        ("texts", "texts", "quantitative", None),
    ]
