"""The numbers of a structure analysis of few texts, small enough for every run of the tests."""

import polars as pl
import pytest
import torch

from helpers.structures import structure_of
from identilens.studies.structure.study import State


@pytest.fixture(scope="module")
def found():
    return structure_of(pairs=0, perturbed=0, count=4)


def test_the_finding_counts_the_patterns_of_the_table(found):
    said = found.summary()
    heads = list(found.table.iter_rows(named=True))
    changed = sum(row["pattern"] != row["effective_pattern"] for row in heads)
    patterned = sum(row["pattern"] not in ("mixed", "empty") for row in heads)
    assert (said.numbers["changed_heads"], said.numbers["patterned_heads"]) == (changed, patterned)
    assert f"{changed} of {len(heads)} heads look different in effective attention" in said.text


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


def test_sums_and_embeddings_are_kept_in_double_precision(tmp_path):
    third = torch.full((2,), 1 / 3, dtype=torch.float64)
    state, again = State(), State()
    state.keep(1, 3, third)
    state.add("encoder.layer0", energy=third.float())
    state.add("encoder.layer0", energy=third)
    state.save(tmp_path, 0)
    again.load(tmp_path, 0)
    assert torch.equal(again.sums["embeddings"], torch.stack([0 * third, third, 0 * third]))
    assert torch.equal(again.sums["encoder.layer0.energy"], third.float().double() + third)


def test_dimensions_are_counted_in_the_spectrum(found):
    counted = found.spectrum.group_by("layer", "head", maintain_order=True).agg(
        dim_half=(pl.col("visibility") >= 0.5).sum(),
        dim_95=(pl.col("visibility").cum_sum() < 0.95 * pl.col("visibility").sum()).sum() + 1,
        energy_95=(pl.col("energy").cum_sum() < 0.95).sum() + 1,
    )
    for name in ("dim_half", "dim_95", "energy_95"):
        assert found.table[name].to_list() == counted[name].to_list()
        assert found.table[name].n_unique() > 1
