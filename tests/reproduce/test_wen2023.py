"""Reproductions of Wen et al. 2023: settings, pages, and one of them run small."""

from dataclasses import replace

import polars as pl
import pytest

from helpers.dycks import MEASURING
from identilens.errors import InputError
from identilens.reproduce import (
    wen2023,
    wen2023_c7,
    wen2023_figure1,
    wen2023_figure2,
    wen2023_figure3,
    wen2023_figure4,
    wen2023_figure7,
    wen2023_footnote4,
    wen2023_prefixes,
    wen2023_table1,
)
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import REPRODUCTIONS
from identilens.reproduce.wen2023 import Run, WenSettings

SETTINGS = {
    "figure1": wen2023_figure1.SETTINGS,
    "figure2": wen2023_figure2.SETTINGS,
    "figure3": wen2023_figure3.settings("complete"),
    "figure10": wen2023_figure3.settings("prefixes"),
    "figure4": wen2023_figure4.SETTINGS,
    "figure7": wen2023_figure7.SETTINGS,
    "table1": wen2023_table1.SETTINGS,
    "footnote4": wen2023_footnote4.SETTINGS,
    "c7": wen2023_c7.SETTINGS,
}


@pytest.fixture
def small(monkeypatch):
    """Everything of a study but its size."""
    train = wen2023.train_dyck

    def shrunk(settings, **options):
        smaller = [replace(one, training=replace(one.training, tokens=700)) for one in settings]
        return train(smaller, **{**options, **MEASURING})

    monkeypatch.setattr(wen2023, "train_dyck", shrunk)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_the_papers(name):
    assert f"wen2023-{name}" in REPRODUCTIONS
    for setting in SETTINGS[name]:
        config = setting.make()
        assert config.hidden_size in (48, 50)
        assert (setting.training.attention == "uniform") == (name == "footnote4")
        assert setting.training.length == 28
        assert setting.training.tokens == 100_000
        assert (setting.training.weight_decay == 0) == ("decay" not in setting.name)
        assert setting.training.data == ("prefixes" if name in ("figure7", "figure10") else "complete")


def test_the_cells_of_table_1():
    found = [
        (config.bracket_types, config.max_depth, config.num_hidden_layers)
        for config in (setting.make() for setting in SETTINGS["table1"])
    ]
    assert sorted(found) == [(k, D, layers) for k in (2, 3) for D in (4, 8) for layers in (2, 3)]


@pytest.mark.parametrize("make", [wen2023_figure3.figure3, wen2023_figure7.figure7, wen2023_c7.c7])
def test_a_small_run_leaves_its_page(make, small, tmp_path):
    found = make(tmp_path, Run(WenSettings(seeds=2, epochs=1)))
    write_reproduction(found, tmp_path, ("svg",))
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| setting | seeds | argmax |" in page
    assert "97 %" in page
    assert "nan" not in page.lower()
    runs = pl.read_csv(tmp_path / "runs.csv")
    assert runs["seed"].n_unique() == 2
    again = make(tmp_path, Run(WenSettings(seeds=2, epochs=1), choices={"resume": True}))
    assert again.findings == found.findings
    windows = again.tables.get("windows")
    if windows is not None:
        assert set(windows["positions"]) == {"all up to 400", "400 to 500"}
        assert len(windows) == 4 * len(again.tables["means"])


def test_models_without_queries_and_keys_attend_uniformly(small, tmp_path):
    found = wen2023_footnote4.footnote4(tmp_path, Run(WenSettings(seeds=2, epochs=1)))
    assert found.tables["variation"]["value"].to_list() == pytest.approx([0] * len(found.tables["variation"]))
    assert "Eq. 19" in found.findings


def test_variation_on_other_prefixes_uses_the_models_of_a_finished_run(small, tmp_path):
    run = Run(wen2023_prefixes.PrefixSettings(seeds=2, epochs=1, prefixes=2))
    found = wen2023_prefixes.footnote13(tmp_path, run)
    by_prefix = found.tables["by_prefix"]
    assert set(by_prefix.select("prefix", "prefixes").rows()) == {("all brackets", 1), ("16 random", 2)}
    probe = by_prefix.filter(prefix="all brackets")["value"].to_list()
    variation = found.tables["variation"].filter(~pl.col("with_start"))
    assert probe == pytest.approx(variation["value"].to_list())
    assert by_prefix["random rows"].to_list() == pytest.approx([2.50] * len(by_prefix), abs=0.005)
    loaded = Run(wen2023_prefixes.PrefixSettings(seeds=30, prefixes=2, trained=tmp_path / "run"))
    again = wen2023_prefixes.footnote13(tmp_path, loaded)
    assert again.findings == found.findings
    assert again.settings == found.settings
    assert (again.settings["seeds"], again.settings["epochs, instead of the paper's"]) == (2, "1")
    with pytest.raises(InputError, match="no models of the setting 'no positions'; it has no positions, rate 0.003"):
        wen2023_prefixes.figure8(tmp_path, loaded)
    gone = next(tmp_path.glob("run/models/*/seed001"))
    gone.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="seed001 is missing"):
        wen2023_prefixes.footnote13(tmp_path, loaded)
