"""Reproductions of Wen et al. 2023: settings, pages, and one of them run small."""

from pathlib import Path

import polars as pl
import pytest

from helpers.dycks import shrunk
from identilens.lab.dyck.configuration import DyckConfig
from identilens.reproduce import wen2023
from identilens.reproduce.options import Corollary2Settings, WenSettings
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.reproduce.wen2023_corollary2 import corollary2, nearest
from identilens.reproduce.wen2023_settings import SETTINGS


def make(name, settings, out, **run):
    return figure_named(f"wen2023-{name}")(settings, out, **run)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(wen2023, "train_dyck", shrunk)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_the_papers(name):
    assert f"wen2023-{name}" in REPRODUCTIONS
    for setting in SETTINGS[name]:
        config = DyckConfig(**setting.config)
        assert config.hidden_size in (48, 50)
        assert (setting.training.attention == "uniform") == (name == "footnote4")
        assert setting.training.length == 28
        assert setting.training.tokens == 100_000
        assert (setting.training.weight_decay == 0) == ("decay" not in setting.name)
        assert setting.training.data == (
            "prefixes" if name in ("figure7", "figure10") else "complete"
        )


def test_the_cells_of_table_1():
    found = [
        (config.bracket_types, config.max_depth, config.num_hidden_layers)
        for config in (DyckConfig(**setting.config) for setting in SETTINGS["table1"])
    ]
    assert sorted(found) == [(k, D, layers) for k in (2, 3) for D in (4, 8) for layers in (2, 3)]


@pytest.mark.parametrize("name", ["figure3", "figure7", "c7"])
def test_a_small_run_leaves_its_page(name, small, tmp_path):
    found = make(name, WenSettings(seeds=2, epochs=1), tmp_path)
    write_reproduction(f"wen2023-{name}", found, tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| setting | seeds | argmax |" in page
    assert "97 %" in page
    assert "nan" not in page.lower()
    runs = pl.read_csv(tmp_path / "runs.csv")
    assert runs["seed"].n_unique() == 2
    again = make(name, WenSettings(seeds=2, epochs=1), tmp_path, resume=True)
    assert again.findings == found.findings


SMALL = Corollary2Settings(
    lengths=(4, 6), strengths=(1e-2, 1e-4), hidden=12, seeds=2, iterations=60
)


@pytest.fixture(scope="module")
def found():
    return corollary2(SMALL, Path())


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
