"""Corollary 2 in small: one row a length, λ and seed, and what the findings say of them."""

import re

import polars as pl
import pytest

from identilens.errors import InputError
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.wen2023_corollary2 import (
    COROLLARY2,
    Corollary2Settings,
    corollary2,
    nearest,
)

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


def test_the_page_says_what_was_measured(found, tmp_path):
    write_reproduction("wen2023-corollary2", COROLLARY2.source, found, tmp_path, ("svg",))
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    runs = found.tables["runs"]
    for length in (4, 6):
        constant = runs.filter(length=length, strength=1e-4)["constant"].max()
        assert f"{constant:.2f} (N = {length})" in page
    ends = runs.pivot("strength", index=["length", "seed"], values="violation")
    fell = int((ends["0.0001"] < ends["0.01"]).sum())
    assert f"fell in {fell} of 4 runs" in page
    assert re.search(r"\| 4 \| 1.0e-02 \| [01] \|", page)
    assert pl.read_csv(tmp_path / "runs.csv").height == 8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"strengths": (1e-4, 1e-3)},
            "expected strengths with at least one value, the largest first",
        ),
        ({"lengths": ()}, "expected lengths with at least one value"),
        ({"types": 1}, "expected types of at least 2; got 1"),
        ({"norm_constant": 0.0}, "expected norm_constant above 0"),
    ],
)
def test_impossible_settings(options, message):
    with pytest.raises(InputError, match=message):
        COROLLARY2.settings_type(**options)
