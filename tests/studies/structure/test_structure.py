from itertools import combinations

import polars as pl
import pytest
import torch

from helpers.zoo import build, ids
from identilens.models.lens import Lens
from identilens.studies.structure.settings import StructureSettings
from identilens.studies.structure.study import StructureStudy, structure

N = 12


def tiny(family="bert"):
    return Lens(build(family), name="tiny")


def corpus(count=9, length=N + 3):
    return [ids(length, seed) for seed in range(count)]


@pytest.fixture(scope="module")
def found():
    return structure(tiny(), corpus(), length=N, clusters=3, compared_pairs=3, perturbed=1)


def heads(text, lens):
    return list(next(iter(lens.capture([text[:N]], weights=True))).heads)


def test_stability_ends_at_all_texts():
    one = structure(tiny(), corpus(6), length=N, clusters=6, compared_pairs=0, perturbed=0)
    assert one.stability.filter(pl.col("clusters") == 6)["to_all"].max() < 1e-6
    assert one.stability.filter(pl.col("clusters") == 6)["to_next"].null_count() == 8
    assert len(one.pairs) == len(one.perturbations) == 0
    assert one.correlations().is_empty()
    assert one.clusters.filter(pl.col("chosen"))["clusters"].to_list() == [6]


def test_random_texts_are_the_mean_over_all_choices():
    lens, texts = tiny(), corpus(6)
    found = structure(lens, texts, length=N, clusters=2, compared_pairs=0, perturbed=0).stability
    maps = torch.stack(
        [torch.stack([one.weights.double() for one in heads(text, lens)]) for text in texts]
    )
    whole = maps.mean(0)
    chosen = [maps[list(pair)].mean(0) - whole for pair in combinations(range(6), 2)]
    squares = torch.stack(chosen).square().sum((-2, -1)).mean(0) / whole.square().sum((-2, -1))
    rows = found.filter(pl.col("clusters") == 2)
    assert rows["random_to_all"].to_list() == pytest.approx(squares.sqrt().tolist(), rel=1e-4)


def test_a_decoder_keeps_its_mask():
    found = structure(tiny("gpt2"), corpus(4), length=N, compared_pairs=4, perturbed=1)
    assert found.table["kind"].unique().to_list() == ["decoder"]
    for name in ("raw", "effective", "all_effective"):
        assert float(found.matrices[f"decoder.layer0.{name}"][0].triu(1).abs().max()) == 0
    assert found.texts["negative"].null_count() == len(found.texts)
    assert len(found.pairs) == len(found.perturbations) == 0


def test_memory_does_not_grow_with_the_number_of_texts():
    def state_bytes(count):
        settings = StructureSettings(length=N, clusters=2, pool=4, compared_pairs=2, perturbed=0)
        study = StructureStudy(tiny(), corpus(count), settings)
        for part in range(len(study.sizes())):
            study.run(part)
        return sum(tensor.nbytes for tensor in study.sums.values())

    assert state_bytes(6) == state_bytes(40)
