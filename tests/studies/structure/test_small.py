"""The numbers of a structure analysis of few texts, small enough for every run of the tests."""

from types import SimpleNamespace

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.heads import seeded
from helpers.structures import structure_of
from identilens.errors import InputError, NumericalError
from identilens.studies.structure.study import LayerView, StructureStudy, _is_mark


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


def test_sums_are_kept_in_double_precision():
    third = torch.full((2,), 1 / 3, dtype=torch.float64)
    study = SimpleNamespace(sums={})
    for energy in (third.float(), third):
        StructureStudy.add(study, "encoder.layer0", energy=energy)
    assert torch.equal(study.sums["encoder.layer0.energy"], third.float().double() + third)


def test_dimensions_are_counted_in_the_spectrum(found):
    counted = found.spectrum.group_by("layer", "head", maintain_order=True).agg(
        dim_half=(pl.col("visibility") >= 0.5).sum(),
        dim_95=(pl.col("visibility").cum_sum() < 0.95 * pl.col("visibility").sum()).sum() + 1,
        energy_95=(pl.col("energy").cum_sum() < 0.95).sum() + 1,
    )
    for name in ("dim_half", "dim_95", "energy_95"):
        assert found.table[name].to_list() == counted[name].to_list()
        assert found.table[name].n_unique() > 1


def captured(n=3, **changes):
    """A layer of two heads that share their values."""
    generator = seeded()
    projection = torch.randn(2, 2, 5, generator=generator)
    site = SimpleNamespace(
        kind="encoder", layer=4, output_projection=projection, fixed_projection=projection
    )
    plain = {
        "site": site, "weights": torch.rand(2, n, n, generator=generator), "visible": None,
        "values": torch.randn(1, n, 2, generator=generator), "queries": torch.zeros(2, n, 2),
    }  # fmt: skip
    return SimpleNamespace(**plain | changes)


@pytest.mark.usefixtures("unchecked_shapes")
def test_a_layer_as_its_weights_and_the_values_that_they_mix():
    layer = captured()
    view = LayerView.of(layer, 7, 3)
    T = layer.values.double().expand(2, -1, -1) @ layer.site.output_projection.double()
    gram = T @ T.mT
    assert view.key == "encoder.layer4"
    assert_close(view.energy, gram / T.square().sum((-2, -1), keepdim=True), rtol=1e-5, atol=1e-7)
    assert_close(view.column, T @ torch.linalg.pinv(T), rtol=1e-5, atol=1e-6)
    assert_close(view.effective, layer.weights.double() @ view.column)
    hidden = LayerView.of(captured(visible=torch.ones(3, 3, dtype=torch.bool).tril()), 7, 3)
    assert not torch.allclose(hidden.effective, view.effective)
    for changes, length, error, words in (
        (
            {},
            4,
            InputError,
            r"encoder layer 4 has attention of torch.Size\(\[3, 3\]\) positions; a structure needs 4",
        ),
        (
            {"weights": None},
            3,
            InputError,
            "encoder layer 4 has attention of no positions; a structure needs 3",
        ),
        (
            {"weights": torch.full((2, 3, 3), torch.nan)},
            3,
            NumericalError,
            "text 7, encoder layer 4: weights or values",
        ),
        (
            {"values": torch.full((1, 3, 2), torch.inf)},
            3,
            NumericalError,
            "text 7, encoder layer 4: weights or values",
        ),
    ):
        with pytest.raises(error, match=words):
            LayerView.of(captured(**changes), 7, length)


@pytest.mark.parametrize("threshold", [None, 0.05])
def test_the_threshold_that_is_used_is_recorded(bundled, threshold):
    texts = ["The ferry left the harbour before dawn.", "Nobody on the quay had paid for it."]
    options = {"length": 6, "clusters": 1, "perturbed": 0, "compared_pairs": 0}
    found = idl.structure(bundled, texts, threshold=threshold, **options)
    recorded = found.provenance["settings"]
    assert recorded["threshold"] == (threshold or 2 / 6)


def test_dimensions_are_noted_after_the_first_eight_texts_and_twice_a_doubling():
    assert [texts for texts in range(1, 50) if _is_mark(texts)] == [
        *range(1, 9),
        12,
        16,
        24,
        32,
        48,
    ]
