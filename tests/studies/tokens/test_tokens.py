"""Texts in, results out: the numbers are those of the measures; resuming, comparing, odd corpora."""

from itertools import product

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from helpers.zoo import build, ids
from identilens.measures.tokens import Probe
from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.splits import keep_training_share, split_sentences, token_rows
from identilens.models import Lens
from identilens.studies.items import Items
from identilens.studies.tokens import study as token_study
from identilens.studies.tokens.extraction import extract
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.settings import TokenSettings
from identilens.studies.tokens.study import build_probe, token_identifiability

TEXTS = [ids(4 + seed % 7, seed) for seed in range(40)]
LENGTHS = [len(text) for text in TEXTS]
ONCE: dict = {"folds": 1, "learning_rates": (0.01,), "max_epochs": 2}
QUICK: dict = {"folds": 2, "learning_rates": (0.01, 0.003), "max_epochs": 4, "hidden_units": 16}


@pytest.fixture(scope="module")
def lens():
    return Lens(build("bert"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("states")


def row(result, **where):
    found = result.table.filter(*(pl.col(name) == value for name, value in where.items()))
    assert len(found) == 1
    return found.row(0, named=True)


def test_numbers_are_those_of_the_measures(lens, cache):
    result = token_identifiability(
        lens, TEXTS, probes=("linear",), distances=("cosine",), states=cache, **QUICK
    )
    assert result.table.schema == pl.Schema(TokenIdentifiability.schema["table"])
    states = extract(lens, Items(lens, TEXTS, None), cache, print)
    splits = split_sentences(40, folds=2)
    chosen = {}
    for fold, layer in product(range(2), (1, 2)):
        split = splits[fold]
        parts = [token_rows(LENGTHS, part) for part in (split.train, split.validation)]
        rates = chosen.get(layer, (0.01, 0.003))
        probe = Probe("cosine", learning_rate=rates, max_epochs=4).fit(
            *(states.layers[number, rows] for rows in parts for number in (layer, 0))
        )
        outcome = probe.outcome_
        chosen.setdefault(layer, outcome.learning_rate)
        found = row(result, layer_tested=layer, fold=fold)
        for column, sentences in (("rate", split.test), ("train_rate", split.train)):
            rows = token_rows(LENGTHS, sentences)
            sizes = [LENGTHS[s] for s in sentences]
            expected = look_up(
                probe.transform(states.layers[layer, rows]),
                states.layers[0, rows],
                sizes,
                distance="cosine",
                token_ids=states.token_ids[rows],
            )
            assert found[column] == pytest.approx(expected.rate)
            if column == "rate":
                assert (found["tokens"], found["sentences"]) == (
                    expected.tokens,
                    expected.sentences,
                )
                assert found["token_rate"] == pytest.approx(expected.token_rate)
                assert (found["chance"], found["token_chance"]) == pytest.approx(
                    (expected.chance, expected.token_chance)
                )
        assert (found["learning_rate"], found["epochs"]) == (outcome.learning_rate, 4)
        assert found["validation_loss"] == pytest.approx(outcome.validation_loss, rel=1e-5)
        assert found["converged"] is False
        assert found["train_tokens"] == len(token_rows(LENGTHS, split.train))


def test_across_layers_holds_the_same_layer_on_its_diagonal(lens, cache):
    options = {"probes": ("naive", "linear"), "states": cache, **QUICK}
    same = token_identifiability(lens, TEXTS, **options)
    across = token_identifiability(lens, TEXTS, experiment="across-layers", **options)
    assert len(same.table) == 2 * 2 * (2 + 2)
    assert len(across.table) == 2 * (2 * 2 + 4 * 2)
    diagonal = across.table.filter(pl.col("layer_trained") == pl.col("layer_tested")).drop(
        "experiment"
    )
    assert_frame_equal(diagonal, same.table.drop("experiment"))
    assert across.by_line()["line"].max() == 2
    assert across.same_layer().drop("experiment").equals(same.means().drop("experiment"))


def test_layer_to_layer(lens, cache):
    options = {
        "experiment": "layer-to-layer", "probes": ("naive", "linear"), "states": cache, **QUICK,
    }  # fmt: skip
    both = token_identifiability(lens, TEXTS, **options)
    states = extract(lens, Items(lens, TEXTS, None), cache, print)
    test = token_rows(LENGTHS, split_sentences(40, folds=2)[0].test)
    sizes = [LENGTHS[s] for s in split_sentences(40, folds=2)[0].test]
    down = look_up(states.layers[2, test], states.layers[1, test], sizes, distance="l2")
    found = row(both, probe="naive", distance="l2", layer_tested=2, fold=0)
    assert found["rate"] == pytest.approx(down.rate)
    assert both.table["layer_target"].to_list() == (both.table["layer_trained"] - 1).to_list()


def test_neighbours_and_shares(lens, cache):
    near = token_identifiability(
        lens,
        TEXTS,
        experiment="neighbours",
        offsets=(-2, 1),
        probes=("linear",),
        distances=("l2",),
        states=cache,
        **ONCE,
    )
    states = extract(lens, Items(lens, TEXTS, None), cache, print)
    split = split_sentences(40, folds=1)[0]
    found = row(near, offset=-2, layer_tested=2)
    assert found["tokens"] == sum(max(0, LENGTHS[s] - 2) for s in split.test)
    sizes = [LENGTHS[s] for s in split.test]
    parts = [token_rows(LENGTHS, part, offset=-2) for part in (split.train, split.validation)]
    mapped = build_probe("linear", "l2", TokenSettings(**ONCE))
    mapped.fit(
        *(one for rows in parts for one in (states.layers[2, rows], states.layers[0, rows - 2]))
    )
    test = token_rows(LENGTHS, split.test)
    expected = look_up(
        mapped.transform(states.layers[2, test]),
        states.layers[0, test],
        sizes,
        distance="l2",
        offset=-2,
    )
    assert found["rate"] == pytest.approx(expected.rate)
    share = token_identifiability(
        lens, TEXTS, experiment="data-share", distances=("l2",), states=cache, **ONCE
    )
    few = row(share, probe="linear", share=0.5)
    assert few["train_tokens"] == len(token_rows(LENGTHS, keep_training_share(split, 0.5).train))
    assert share.table.filter(pl.col("probe") == "naive")["share"].to_list() == [1.0]
    assert share.table["layer_trained"].unique().to_list() == [1]
    assert share.table["train_rate"].is_null().equals(share.table["probe"] == "naive")


def test_chunks_change_nothing(lens, cache, monkeypatch):
    linear = {"probes": ("linear",), "states": cache, **ONCE}
    for options in ({}, {"experiment": "neighbours", "offsets": (2,)}):
        whole = token_identifiability(lens, TEXTS, **linear, **options).table
        monkeypatch.setattr(token_study, "CHUNK_TOKENS", 7)
        assert_frame_equal(token_identifiability(lens, TEXTS, **linear, **options).table, whole)
        monkeypatch.undo()


def test_seed_decides_and_states_need_no_folder(lens, cache):
    options = {"probes": ("linear",), "distances": ("cosine",), **QUICK}
    one, other = (
        token_identifiability(lens, TEXTS, seed=seed, states=cache, **options) for seed in (1, 2)
    )
    assert not one.table["rate"].equals(other.table["rate"])
    assert_frame_equal(token_identifiability(lens, TEXTS, seed=1, **options).table, one.table)


def test_hidden_states_lie_in_the_runs_folder_or_nowhere(lens, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    options = {"probes": ("naive",), "distances": ("l2",), "folds": 1}
    alone = token_identifiability(lens, TEXTS, **options)
    assert list((tmp_path / "temporary").iterdir()) == []
    kept = token_identifiability(lens, TEXTS, out=tmp_path / "run", **options)
    assert len(list((tmp_path / "run" / "states").glob("*/states.npy"))) == 1
    assert_frame_equal(kept.table, alone.table)
