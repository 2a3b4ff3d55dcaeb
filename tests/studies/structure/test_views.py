"""What the charts and the report of a structure analysis show: the numbers of its tables, and tokens as they are."""

import numpy as np
import pytest

from helpers.structures import SCRIPT, structure_of
from identilens.measures.structure import structure_weights
from identilens.studies.structure import maps, views


@pytest.fixture(scope="module")
def found():
    """The structure of a tiny encoder's attention, with a hostile model name and hostile tokens."""
    return structure_of(tokens=SCRIPT)


def rows(chart):
    """Return the rows of every data set of a chart."""
    return [row for held in chart.to_dict()["datasets"].values() for row in held]


def test_small_maps_are_w_at_each_threshold(found):
    chart = found.charts()["structures_encoder_effective"]
    drawn = rows(chart)
    own = found.threshold
    assert maps.levels(found.table) == [own, 0.0, 0.5 * own, 2 * own, 4 * own]
    assert len(drawn) == 8 * 5
    options = chart.to_dict()["params"][0]["bind"]["options"]
    assert options[0] == "l = 0.1667 (2 times uniform)"
    assert {row["threshold"] for row in drawn} == set(options)
    assert drawn[0]["best_20_pattern"] == found.table["effective_pattern"][0]
    assert all(row["_picture"].startswith("data:image/png;base64,") for row in drawn)
    assert len({row["_picture"] for row in drawn}) > 20


def test_maps_for_the_viewer_hold_w(found):
    shown = maps.token_maps(found.table, found.matrices, 0.0, [0])
    assert len(shown) == 8 * 2 * 2
    one = next(one for one in shown if one.choices["layer"] == 1 and one.choices["head"] == 2)
    assert one.choices["weights"] == "raw attention"
    assert one.choices["mean over"] == "3 representatives"
    mean = found.mean_weights(1, 2)
    np.testing.assert_allclose(one.layers["mean weights"], mean)
    for level in (found.threshold, 2 * found.threshold):
        np.testing.assert_allclose(
            one.layers[f"W at l = {level:.4g}"], structure_weights(mean, level)
        )
    assert one.queries[:2] == ["0 (special)", "1"]
    row = found.table.filter(layer=1, head=2).row(0, named=True)
    assert f"raw {row['pattern']}" in one.note
    assert "dim R = 12 of 12" in one.note
    everything = next(one for one in shown if one.choices["mean over"] == "all 9 texts")
    np.testing.assert_allclose(
        everything.layers["mean weights"], found.mean_weights(0, 0, name="all_raw")
    )


def test_what_a_threshold_leaves(found):
    kept = maps.kept(found.table, found.matrices)
    level = kept["threshold"].unique().sort()[30]
    row = kept.filter(layer=0, head=3, weights="effective", threshold=level).row(0, named=True)
    stays = found.mean_weights(0, 3, name="effective") >= level
    assert row["kept"] == pytest.approx(float(stays.double().mean()))
    assert row["emptied"] == pytest.approx(float((~stays.any(-1)).double().mean()))


def test_r_by_head_and_as_a_mean(found):
    frames = found._frames()
    means = {
        (row["texts"], row["measure"]): row["value"]
        for row in rows(views.subspace(frames)["growth"])
    }
    for (texts,), held in found.growth.group_by("texts"):
        assert means[texts, "dim R"] == pytest.approx(held["dim_r"].mean(), rel=1e-5)
    chart = views.subspace(frames, each=True)["growth"]
    one = [
        row["value"]
        for row in rows(chart)
        if row["heads"] == "encoder layer 1, head 2" and row["measure"] == "dim R"
    ]
    assert one == found.growth.filter(layer=1, head=2)["dim_r"].to_list()
    options = chart.to_dict()["params"][0]["bind"]["options"]
    assert options[0] == "mean over all 8 heads"
    assert len(options) == 9
