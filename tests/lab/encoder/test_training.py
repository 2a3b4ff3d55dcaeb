"""Training through the Trainer: learns, and leaves a model that the library opens."""

import pytest

import identilens as idl
from helpers.made_tasks import write_trec
from identilens.lab.encoder.settings import EncoderSettings


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_trec(tmp_path_factory.mktemp("data") / "trec")


@pytest.fixture(scope="module")
def run(folder, tmp_path_factory):
    settings = EncoderSettings(
        task="trec", data=folder, d_k=4, d_model=16, attention_heads=2, feed_forward=24, epochs=3, batch_size=8,
        learning_rate=0.01, max_length=16,
    )  # fmt: skip
    return idl.lab.train(settings=settings, out=tmp_path_factory.mktemp("run") / "run")


def test_it_learns_and_says_so(run):
    assert run.metrics["test_accuracy"] > 0.9
    assert run.table["epoch"].to_list() == [1, 2, 3]
    best = run.table["validation_accuracy"].max()
    assert run.metrics["validation_accuracy"] == best
    assert run.table["validation_accuracy"][run.metrics["best_epoch"] - 1] == best
    assert "test accuracy" in run.summary().text
    assert {path.suffix for path in run.model_path.iterdir()} == {".json", ".safetensors"}


def test_the_model_is_the_one_that_was_measured(run, folder):
    from identilens.lab.encoder.readers import read_part
    from identilens.lab.encoder.tasks import TASKS
    from identilens.lab.encoder.training import collate_examples, encoded_examples

    lens = idl.load(run.model_path)
    examples = read_part(TASKS["trec"], folder, "test")
    batch = collate_examples(encoded_examples(examples, lens.tokenizer))
    right = (lens.model(**batch).logits.argmax(-1) == batch["labels"]).float().mean()
    assert right.item() == pytest.approx(run.metrics["test_accuracy"])
