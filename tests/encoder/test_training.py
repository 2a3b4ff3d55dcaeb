"""Training through the Trainer: learns, resumes to the same numbers, leaves a model that the library opens."""

import json
from dataclasses import replace

import pytest
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.made_tasks import write_trec
from identilens.encoder.training import TrainingSettings, train
from identilens.errors import InputError, OutputFolderError
from identilens.results import EncoderRun, EncoderSweep
from identilens.studies.sweep.study import sweep

SMALL = TrainingSettings(
    d_k=4, d_model=16, attention_heads=2, feed_forward=24, epochs=3, batch_size=8, learning_rate=0.01, max_length=16
)


class CutError(Exception):
    pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trec(tmp_path_factory.mktemp("data") / "trec")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    return train("trec", tmp_path_factory.mktemp("run") / "run", data=folder, settings=SMALL)


def test_it_learns_and_says_so(run):
    assert run.metrics["test_accuracy"] > 0.9
    assert run.table["epoch"].to_list() == [1, 2, 3]
    best = run.table["validation_accuracy"].max()
    assert run.metrics["validation_accuracy"] == best
    assert run.table["validation_accuracy"][run.metrics["best_epoch"] - 1] == best
    assert "test accuracy" in run.summary()
    assert not (run.folder / "checkpoints").exists()
    assert {path.suffix for path in run.model_path.iterdir()} == {".json", ".safetensors"}
    assert json.loads((run.folder / "metrics.json").read_text())["parameters"] > 0


def test_the_model_is_the_one_that_was_measured(run, folder):
    from identilens.encoder.batches import EncodedExamples, collate_examples
    from identilens.encoder.readers import read_local
    from identilens.encoder.tasks import TASKS

    lens = idl.load(run.model_path)
    examples = read_local(TASKS["trec"], folder, "test")
    encoded = EncodedExamples(examples, lens.tokenizer)
    batch = collate_examples([encoded[row] for row in range(len(encoded))])
    right = (lens.model(**batch).logits.argmax(-1) == batch["labels"]).float().mean()
    assert float(right) == pytest.approx(run.metrics["test_accuracy"])


def test_audit_runs_on_it(run):
    found = idl.audit(idl.load(run.model_path), ["How many lamps burn at night ?", "Where is the harbour ?"])
    assert found.table["d_k"].unique().to_list() == [4]
    assert found.table["reconstruction_error"].max() < 1e-5


def test_an_interrupted_run_ends_as_a_whole_one(run, folder, tmp_path):
    def stop(done, total, note):
        if done == 9:
            raise CutError

    with pytest.raises(CutError):
        train("trec", tmp_path / "cut", data=folder, settings=SMALL, progress=stop)
    with pytest.raises(OutputFolderError, match="interrupted. Pass --resume"):
        train("trec", tmp_path / "cut", data=folder, settings=SMALL)
    seen = []
    again = train(
        "trec", tmp_path / "cut", data=folder, settings=SMALL, resume=True,
        progress=lambda done, total, note: seen.append((done, total)),
    )  # fmt: skip
    assert seen[0][0] > 1
    assert seen[-1] == (18, 18)
    assert_frame_equal(again.table, run.table)
    same = ("test_accuracy", "test_loss", "best_epoch", "validation_accuracy")
    assert {name: again.metrics[name] for name in same} == {name: run.metrics[name] for name in same}


def test_a_finished_run_is_read_again_and_another_refused(run, folder):
    again = train("trec", run.folder, data=folder, settings=SMALL, resume=True)
    assert_frame_equal(again.table, run.table)
    with pytest.raises(OutputFolderError, match="holds another run"):
        train("trec", run.folder, data=folder, settings=replace(SMALL, seed=1), resume=True)
    assert EncoderRun.load(run.folder).metrics == run.metrics


def test_pairs_share_the_encoder(tmp_path):
    rows = [
        ("entailment", "A lamp burns.", "A lamp burns."),
        ("neutral", "A lamp burns.", "It is winter."),
        ("contradiction", "A lamp burns.", "No lamp burns."),
    ] * 8
    for part in ("train", "dev", "test"):
        lines = "\n".join("\t".join(row) for row in rows)
        (tmp_path / f"{part}.tsv").write_text(f"label\tpremise\thypothesis\n{lines}\n", encoding="utf-8")
    found = train("snli", tmp_path / "run", data=tmp_path, settings=replace(SMALL, heads="add", epochs=8))
    assert found.metrics["test_accuracy"] == 1
    assert idl.load(found.model_path).model.config.sentence_pairs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"d_k": 0}, "d_k must be at least 1"),
        ({"attention_heads": 3}, "3 heads do not divide"),
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"max_length": 1}, "max_length must hold"),
    ],
)
def test_settings_that_cannot_be_used(wrong, message, folder, tmp_path):
    with pytest.raises(InputError, match=message):
        train("trec", tmp_path / "run", data=folder, settings=replace(SMALL, **wrong))


def test_a_sweep_is_resumed_and_set_beside_the_paper(folder, tmp_path):
    quick = replace(SMALL, epochs=1)
    grid = {"d_k": (1, 3), "heads": ("concat", "add"), "data": folder, "settings": quick}
    whole = sweep(["trec"], tmp_path / "whole", **grid)
    assert whole.table.select("heads", "d_k").rows() == [("concat", 1), ("concat", 3), ("add", 1), ("add", 3)]
    assert whole.table["published"].to_list() == [0.836, None, 0.841, None]
    assert whole.table["d_v"].to_list() == [8, 8, 16, 16]

    def stop(done, total, note):
        if "add" in note:
            raise CutError

    with pytest.raises(CutError):
        sweep(["trec"], tmp_path / "cut", **grid, progress=stop)
    again = sweep(["trec"], tmp_path / "cut", **grid, resume=True)
    assert_frame_equal(again.table.drop("seconds"), whole.table.drop("seconds"))
    assert not list((tmp_path / "whole" / "runs").glob("*/model"))
    assert "| trec | Con | published | 0.836 |  |" in whole.markdown()
    assert_frame_equal(EncoderSweep.load(tmp_path / "cut").table, again.table)
    whole.save(tmp_path / "saved")
    assert_frame_equal(EncoderSweep.load(tmp_path / "saved").table, whole.table)
    with pytest.raises(InputError, match="at least one task"):
        sweep([], tmp_path / "none", data=folder)
