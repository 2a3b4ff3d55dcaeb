"""The numbers of a structure analysis of few texts, small enough for every run of the tests."""

import polars as pl
import pytest

import identilens as idl
from helpers.structures import structure_of


@pytest.fixture(scope="module")
def found():
    return structure_of(pairs=0, perturbed=0, count=4)


def test_energies_are_shares_and_visibilities_are_ranks(found):
    sums = found.spectrum.group_by("kind", "layer", "head").agg(
        pl.col("energy", "visibility").sum()
    )
    assert sums["energy"].to_list() == pytest.approx([1.0] * len(sums))
    ranks = found.texts.group_by("kind", "layer", "head").agg(pl.col("rank").mean())
    both = sums.join(ranks, on=["kind", "layer", "head"])
    assert both["visibility"].to_list() == pytest.approx(both["rank"].to_list())


@pytest.mark.parametrize("given", [None, 3])
def test_w_is_made_of_as_many_texts_as_given_or_as_the_largest_silhouette_says(given):
    found = structure_of(pairs=0, perturbed=0, count=6, clusters=given)
    best = found.clusters.sort("silhouette")["clusters"][-1]
    assert best == 2
    assert found.clusters.filter("chosen")["clusters"].to_list() == [given or best]
    assert len(found.representatives) == (given or best)


def test_dimensions_are_counted_in_the_spectrum(found):
    counted = found.spectrum.group_by("layer", "head", maintain_order=True).agg(
        dim_half=(pl.col("visibility") >= 0.5).sum(),
        dim_95=(pl.col("visibility").cum_sum() < 0.95 * pl.col("visibility").sum()).sum() + 1,
        energy_95=(pl.col("energy").cum_sum() < 0.95).sum() + 1,
    )
    for name in ("dim_half", "dim_95", "energy_95"):
        assert found.table[name].to_list() == counted[name].to_list()
        assert found.table[name].n_unique() > 1


@pytest.mark.parametrize("threshold", [None, 0.05])
def test_the_threshold_that_is_used_is_recorded(bundled, threshold):
    texts = ["The ferry left the harbour before dawn.", "Nobody on the quay had paid for it."]
    options = {"length": 6, "clusters": 1, "perturbed": 0, "compared_pairs": 0}
    found = idl.structure(bundled, texts, threshold=threshold, **options)
    recorded = found.provenance["settings"]
    assert recorded["threshold"] == (threshold or 2 / 6)
