"""Training through the Trainer: learns, resumes to the same numbers, leaves a model that the library opens."""

from dataclasses import replace

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.made_tasks import write_trec
from identilens.errors import InputError
from identilens.lab.encoder import training
from identilens.lab.encoder.settings import EncoderSettings

SMALL = EncoderSettings(
    task="trec",
    d_k=4,
    d_model=16,
    attention_heads=2,
    feed_forward=24,
    epochs=3,
    batch_size=8,
    learning_rate=0.01,
    max_length=16,
)


class CutError(Exception):
    pass


def train(task, out, *, data, settings, **run):
    return idl.lab.train(settings=replace(settings, task=task, data=data), out=out, **run)


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
    assert "test accuracy" in run.summary().text
    assert not (run.folder / "checkpoints").exists()
    assert {path.suffix for path in run.model_path.iterdir()} == {".json", ".safetensors"}
    assert run.metrics["parameters"] > 0


def test_the_best_epoch_is_the_first_one_of_the_highest_validation_accuracy(
    folder, tmp_path, monkeypatch
):
    accuracies = pl.DataFrame({
        "epoch": [1, 2, 3, 4], "train_loss": [4.0, 3.0, 2.0, 1.0], "validation_loss": [0.4, 0.3, 0.2, 0.1],
        "validation_accuracy": [0.5, 0.9, 0.9, 0.7],
    })  # fmt: skip
    monkeypatch.setattr(training, "_epochs", lambda history: accuracies)
    metrics = train(
        "trec", tmp_path / "run", data=folder, settings=replace(SMALL, epochs=1)
    ).metrics
    assert (metrics["best_epoch"], metrics["validation_accuracy"]) == (2, 0.9)


def test_the_model_is_the_one_that_was_measured(run, folder):
    from identilens.lab.encoder.readers import read_local
    from identilens.lab.encoder.tasks import TASKS
    from identilens.lab.encoder.training import collate_examples, encoded_examples

    lens = idl.load(run.model_path)
    examples = read_local(TASKS["trec"], folder, "test")
    batch = collate_examples(encoded_examples(examples, lens.tokenizer))
    right = (lens.model(**batch).logits.argmax(-1) == batch["labels"]).float().mean()
    assert float(right) == pytest.approx(run.metrics["test_accuracy"])


def test_initial_and_logit_scale_and_block_reach_the_model(folder, tmp_path):
    chosen = replace(SMALL, epochs=1, initial_std=0.02, logit_scale="none", block="paper")
    run = train("trec", tmp_path / "run", data=folder, settings=chosen)
    config = idl.load(run.model_path).model.config
    assert (config.initializer_std, config.logit_scale, config.block) == (0.02, "none", "paper")
    assert (run.metrics["initial_std"], run.metrics["logit_scale"]) == (0.02, "none")


def test_audit_runs_on_it(run):
    found = idl.audit(
        idl.load(run.model_path), ["How many lamps burn at night ?", "Where is the harbour ?"]
    )
    assert found.table["d_k"].unique().to_list() == [4]
    assert found.table["reconstruction_error"].max() < 1e-5


def test_pairs_share_the_encoder(tmp_path):
    rows = [
        ("entailment", "A lamp burns.", "A lamp burns."),
        ("neutral", "A lamp burns.", "It is winter."),
        ("contradiction", "A lamp burns.", "No lamp burns."),
    ] * 8
    for part in ("train", "dev", "test"):
        lines = "\n".join("\t".join(row) for row in rows)
        (tmp_path / f"{part}.tsv").write_text(
            f"label\tpremise\thypothesis\n{lines}\n", encoding="utf-8"
        )
    found = train(
        "snli", tmp_path / "run", data=tmp_path, settings=replace(SMALL, heads="add", epochs=8)
    )
    assert found.metrics["test_accuracy"] == 1
    assert idl.load(found.model_path).model.config.sentence_pairs


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"d_k": 0}, "expected d_k of at least 1; got 0"),
        ({"attention_heads": 3}, "3 heads do not divide"),
        ({"learning_rate": 0.0}, "expected learning_rate above 0"),
        ({"epochs": 0}, "expected epochs of at least 1"),
        ({"dropout": 1.0}, "expected dropout below 1"),
        ({"max_length": 1}, "expected max_length of at least 2"),
    ],
)
def test_settings_that_cannot_be_used(wrong, message, folder, tmp_path):
    with pytest.raises(InputError, match=message):
        train("trec", tmp_path / "run", data=folder, settings=replace(SMALL, **wrong))


def test_training_needs_a_folder(folder):
    with pytest.raises(InputError, match=r"needs a folder. Pass out="):
        idl.lab.train(settings=replace(SMALL, data=folder))


@pytest.mark.parametrize("point", ["save_model", "_save_rng_state", "save_to_json", "keep_last"])
def test_training_goes_on_from_the_last_whole_checkpoint(run, folder, tmp_path, monkeypatch, point):
    """Killed while the second checkpoint is written, or before it is marked; then the folder is moved."""
    from transformers import Trainer, TrainerState

    from identilens.lab.encoder import training

    owner = {"save_to_json": TrainerState, "keep_last": training}.get(point, Trainer)
    change, calls, seen = getattr(owner, point), [], []

    def cut(*given, **options):
        calls.append(given)
        if len(calls) == 2:
            raise CutError
        return change(*given, **options)

    monkeypatch.setattr(owner, point, cut)
    with pytest.raises(CutError):
        train("trec", tmp_path / "cut", data=folder, settings=SMALL)
    moved = (tmp_path / "cut").rename(tmp_path / "moved")
    again = train(
        "trec",
        moved,
        data=folder,
        settings=SMALL,
        resume=True,
        progress=lambda done, *_: seen.append(done),
    )
    assert min(done for done in seen if done) == 7
    assert_frame_equal(again.table, run.table)
    assert again.metrics["test_loss"] == run.metrics["test_loss"]
    assert not (moved / "checkpoints").exists()


def test_a_damaged_checkpoint_is_passed_over(run, folder, tmp_path):
    def stop(done, total, note):
        if done == 14:
            raise CutError

    with pytest.raises(CutError):
        train("trec", tmp_path / "cut", data=folder, settings=SMALL, progress=stop)
    for file in (tmp_path / "cut" / "checkpoints").glob("*/optimizer.pt"):
        file.write_bytes(file.read_bytes()[:100])
    again = train("trec", tmp_path / "cut", data=folder, settings=SMALL, resume=True)
    assert_frame_equal(again.table, run.table)
