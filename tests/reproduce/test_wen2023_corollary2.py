"""Corollary 2 in small: one row a length, λ and seed, and what the findings say of them."""

import pytest

from identilens.reproduce.options import Corollary2Settings
from identilens.reproduce.wen2023_corollary2 import corollary2, nearest

SMALL = Corollary2Settings(
    lengths=(4, 6), strengths=(1e-2, 1e-4), hidden=12, seeds=2, iterations=60
)


@pytest.fixture(scope="module")
def found():
    return corollary2(SMALL)


def test_a_row_for_each_length_strength_and_seed(found):
    runs = found.tables["runs"]
    keys = [
        (length, seed, strength)
        for length in (4, 6)
        for seed in (0, 1)
        for strength in (1e-2, 1e-4)
    ]
    assert runs.select("length", "seed", "strength").rows() == keys
    assert (runs["constant"] - runs["length"] * runs["largest_violation"]).abs().max() == 0
    assert (
        runs["objective"] - runs["loss"] - runs["strength"] / 2 * runs["norm"] ** 2
    ).abs().max() < 1e-12
    assert (runs["violation"] <= runs["largest_violation"]).all()
    small = runs.filter(strength=1e-4)
    assert small["loss"].max() < runs.filter(strength=1e-2)["loss"].min()


def test_the_nearest_to_the_minimiser_has_the_least_objective(found):
    best = nearest(found.tables["runs"])
    assert best.select("length", "strength").rows() == [(4, 1e-2), (4, 1e-4), (6, 1e-2), (6, 1e-4)]
    for row in best.iter_rows(named=True):
        own = found.tables["runs"].filter(length=row["length"], strength=row["strength"])
        assert row["objective"] == own["objective"].min()
        assert (row["least_violation"], row["most_violation"]) == (
            own["violation"].min(),
            own["violation"].max(),
        )
