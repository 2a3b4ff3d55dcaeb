import json

import polars as pl

from identilens.charts import choose, lines, rule, scatter

FRAME = pl.DataFrame(
    {
        "layer": [0, 1, 0, 1],
        "rate.mean[0]": [0.5, float("nan"), 1.0, float("inf")],
        "probe": ["\u202eb", "b", "a", "a"],
    }
)


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
    json.dumps(spec, allow_nan=False)
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
