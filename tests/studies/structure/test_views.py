"""What the charts and the report of a structure analysis show: the numbers of its tables, and tokens as they are."""

import numpy as np
import pytest

from helpers.structures import SCRIPT, structure_of
from identilens.measures.structure import structure_weights
from identilens.studies.structure import maps, views

CHARTS = [
    "structures_encoder_raw", "structures_encoder_effective", "growth", "spectrum", "positions", "kept",
    "pattern_scores", "patterns", "overlap", "overlap_heads", "negative", "negative_heads", "stability", "silhouette",
    "norms", "perturbations",
]  # fmt: skip


@pytest.fixture(scope="module")
def found():
    """The structure of a tiny encoder's attention, with a hostile model name and hostile tokens."""
    return structure_of(tokens=SCRIPT)


@pytest.fixture(scope="module")
def bare():
    """A decoder without pairs and perturbations."""
    return structure_of(pairs=0, perturbed=0, family="gpt2", count=4)


def rows(chart):
    """Return the rows of every data set of a chart."""
    return [row for held in chart.to_dict()["datasets"].values() for row in held]


def test_charts_by_name(found, bare):
    assert list(found.charts()) == CHARTS
    missing = {"overlap", "overlap_heads", "negative", "negative_heads", "norms", "perturbations"}
    decoder = {name.replace("encoder", "decoder") for name in CHARTS} - missing
    assert set(bare.charts()) == decoder


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


def test_patterns_and_pairs_are_drawn(found):
    charts = found.charts()
    scores = {
        (row["heads"], row["pattern"], row["weights"]): row["score"]
        for row in rows(charts["pattern_scores"])
    }
    for row in found.patterns.iter_rows(named=True):
        where = (f"{row['layer']}.{row['head']}", row["pattern"], row["weights"])
        assert scores[where] == pytest.approx(row["score"], abs=1e-5)
    cells = {
        (row["place"], row["head"], row["measure"]): row["value"]
        for row in rows(charts["overlap_heads"])
    }
    one = found.pairs.filter(layer=1, head=0)
    assert cells[1, 0, "shared null space"] == pytest.approx(one["overlap"].mean(), rel=1e-5)
    assert cells[1, 0, "not equivalent under the other text"] == 1


def test_the_finding_says_what_was_found(found):
    finding = found.summary()
    lines = finding.text.splitlines()
    assert lines[0].startswith(
        "9 texts of 12 tokens: R, the directions of weights that the head's output shows in some text, is the whole "
        "space in 8 of 8 heads, after 2 texts"
    )
    assert "averaged over 3 representative texts, without weights below l = 0.1667" in lines[1]
    assert any("Naim & Asher's projection of the weights" in line for line in lines)
    assert any(line.startswith("Weights with the same output in one text") for line in lines)
    assert lines[-1].startswith("Rank correlation of norms")
    assert finding.numbers["full_heads"] == 8
    assert finding.numbers["texts_to_fill"] == 2
    assert finding.numbers["negative_entries"] == pytest.approx(found.texts["negative"].mean())
    assert finding.headline[0] == ("8 of 8", "heads whose R is the whole space of 12 dimensions")


def test_without_pairs_and_perturbations(bare, tmp_path):
    page = bare.to_html(tmp_path / "report.html").read_text("utf-8")
    assert 'id="norms"' not in page, "no weights were perturbed"
    assert 'id="classes"' not in page, "no pair of texts was compared"
