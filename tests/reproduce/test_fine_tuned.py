"""When a fine-tuned checkpoint is used again, and when it is refused."""

import hashlib
import lzma
import re
from functools import cache

import pytest

from identilens.errors import InputError, OutputFolderError
from identilens.models.loading import load
from identilens.reproduce import inputs
from identilens.reproduce.inputs import tuned_model, tuning_record
from identilens.reproduce.options import FineTuning

HOW = FineTuning(epochs=1, rows=4)
cached = cache(load)


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """Data, and a training that only counts: the list grows by the seed of each."""
    (tmp_path / "data/mrpc").mkdir(parents=True)
    (tmp_path / "data/mrpc/train.tsv.xz").write_bytes(lzma.compress(b"rows"))
    seeds = []

    def fine_tune(task, model, file, folder, how, *told):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").write_text(f"{task} {how.seed}")
        seeds.append(how.seed)

    monkeypatch.setattr(inputs, "fine_tune", fine_tune)
    monkeypatch.setattr(inputs, "load", cached)
    return seeds


def made(folder, how=HOW, model="bundled", **options):
    return tuned_model("mrpc", model, folder / "data", folder / "out", how, None, **options)


def test_the_record_says_what_decides_the_weights(trained, tmp_path):
    file = tmp_path / "data/mrpc/train.tsv.xz"
    assert tuning_record("mrpc", "bundled", tmp_path / "data", HOW) == {
        "task": "mrpc", "epochs": 1, "batch_size": 32, "learning_rate": 5e-5, "longest": 128, "rows": 4, "seed": 0,
        "model digest": load("bundled").digest, "training part sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
    }  # fmt: skip
    with pytest.raises(InputError, match="cannot"):
        tuning_record("cola", "bundled", tmp_path / "data", HOW)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"how": FineTuning(epochs=1, rows=4, seed=3)},
            "seed is 0 there and 3 here. Remove it, use --overwrite",
        ),
        (
            {"how": FineTuning(epochs=1, rows=5, learning_rate=1e-4)},
            "learning_rate is 5e-05 there and 0.0001 here; row",
        ),
        ({"model": "bundled-decoder"}, "model digest is"),
        ({}, "training part sha256 is"),
    ],
)
def test_another_checkpoint_is_refused_or_replaced(changes, words, trained, tmp_path):
    made(tmp_path)
    if not changes:
        (tmp_path / "data/mrpc/train.tsv.xz").write_bytes(lzma.compress(b"other rows"))
    with pytest.raises(OutputFolderError, match=re.escape(words)):
        made(tmp_path, **changes)
    assert len(trained) == 1
    made(tmp_path, **changes, overwrite=True)
    made(tmp_path, **changes)
    assert len(trained) == 2
