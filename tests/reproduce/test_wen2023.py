"""Reproductions of Wen et al. 2023: settings, pages, and one of them run small."""

from dataclasses import replace

import polars as pl
import pytest

from helpers.dycks import MEASURING
from identilens.errors import InputError
from identilens.reproduce import wen2023
from identilens.reproduce.record import write_reproduction
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.reproduce.wen2023 import SETTINGS, PrefixSettings, WenSettings


def make(name, settings, out, **run):
    return figure_named(f"wen2023-{name}").make(settings, out, **run)


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
        assert setting.training.data == (
            "prefixes" if name in ("figure7", "figure10") else "complete"
        )


def test_the_cells_of_table_1():
    found = [
        (config.bracket_types, config.max_depth, config.num_hidden_layers)
        for config in (setting.make() for setting in SETTINGS["table1"])
    ]
    assert sorted(found) == [(k, D, layers) for k in (2, 3) for D in (4, 8) for layers in (2, 3)]


@pytest.mark.parametrize("name", ["figure3", "figure7", "c7"])
def test_a_small_run_leaves_its_page(name, small, tmp_path):
    found = make(name, WenSettings(seeds=2, epochs=1), tmp_path)
    write_reproduction(f"wen2023-{name}", "Wen et al. 2023", found, tmp_path, ("svg",))
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "| setting | seeds | argmax |" in page
    assert "97 %" in page
    assert "nan" not in page.lower()
    runs = pl.read_csv(tmp_path / "runs.csv")
    assert runs["seed"].n_unique() == 2
    again = make(name, WenSettings(seeds=2, epochs=1), tmp_path, resume=True)
    assert again.findings == found.findings
    windows = again.tables.get("windows")
    if windows is not None:
        assert set(windows["positions"]) == {"all up to 400", "400 to 500"}
        assert len(windows) == 4 * len(again.tables["means"])


def test_models_without_queries_and_keys_attend_uniformly(small, tmp_path):
    found = make("footnote4", WenSettings(seeds=2, epochs=1), tmp_path)
    assert found.tables["variation"]["value"].to_list() == pytest.approx(
        [0] * len(found.tables["variation"])
    )
    assert "Eq. 19" in found.findings


def test_variation_on_other_prefixes_uses_the_models_of_a_finished_run(small, tmp_path):
    found = make("footnote13", PrefixSettings(seeds=2, epochs=1, prefixes=2), tmp_path)
    by_prefix = found.tables["by_prefix"]
    assert set(by_prefix.select("prefix", "prefixes").rows()) == {
        ("all brackets", 1),
        ("16 random", 2),
    }
    probe = by_prefix.filter(prefix="all brackets")["value"].to_list()
    variation = found.tables["variation"].filter(~pl.col("with_start"))
    assert probe == pytest.approx(variation["value"].to_list())
    assert by_prefix["random rows"].to_list() == pytest.approx([2.50] * len(by_prefix), abs=0.005)
    loaded = PrefixSettings(seeds=30, prefixes=2, trained=tmp_path / "run")
    again = make("footnote13", loaded, tmp_path)
    assert again.findings == found.findings
    assert again.settings == found.settings
    assert (again.settings["seeds"], again.settings["epochs, instead of the paper's"]) == (2, "1")
    with pytest.raises(
        InputError, match="no models of the setting 'no positions'; it has no positions, rate 0.003"
    ):
        make("figure8", loaded, tmp_path)
    gone = next(tmp_path.glob("run/models/*/seed001"))
    gone.rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="seed001 is missing"):
        make("footnote13", loaded, tmp_path)
