"""Hidden states on disk: what is written, when it is reused, and what an interruption leaves."""

from unittest.mock import patch

import pytest
import torch
from torch.testing import assert_close

from helpers.zoo import build, example, ids
from identilens.errors import InputError, OutputFolderError
from identilens.models import Lens
from identilens.studies.items import Items
from identilens.studies.tokens import extraction
from identilens.studies.tokens.study import token_identifiability

TEXTS = [ids(length, seed) for seed, length in enumerate([9, 3, 12, 1, 7, 7, 20, 5])]


def extract(lens, texts, cache, *, max_length=None, batch_size=16, tell=print):
    """The hidden states of texts, in batches of a size."""
    with patch.object(extraction, "BATCH_SIZE", batch_size):
        return extraction.extract(lens, Items(lens, texts, max_length), cache, tell)


def alone(lens, texts):
    """Each text's states by itself, one after the other."""
    with torch.no_grad():
        outputs = [lens.body(torch.tensor([text]), output_hidden_states=True) for text in texts]
    return torch.cat([torch.stack(output.hidden_states)[:, 0] for output in outputs], 1)


def count_runs(lens, monkeypatch):
    """Sizes of the batches that the model runs from now on."""
    sizes, before = [], lens.run

    def run(items, *arguments, **options):
        sizes.append(len(items))
        return before(items, *arguments, **options)

    monkeypatch.setattr(lens, "run", run)
    return sizes


@pytest.mark.parametrize("family", ["bert", "roberta", "gpt2", "llama", "albert"])
def test_batches_hold_what_each_text_gives_alone(family, tmp_path):
    lens = Lens(build(family))
    # What is a pattern to some readers of files is a name here.
    found = extract(lens, TEXTS, tmp_path / "run[1]*", batch_size=3)
    assert_close(found.layers, alone(lens, TEXTS), rtol=1e-4, atol=1e-5)
    assert found.lengths == tuple(map(len, TEXTS))
    assert found.token_ids.tolist() == [token for text in TEXTS for token in text]


def test_of_an_encoder_decoder_the_encoder_is_read(tmp_path):
    lens = Lens(build("t5"))
    found = extract(lens, TEXTS[:3], tmp_path)
    with torch.no_grad():
        states = lens.model.get_encoder()(
            torch.tensor([TEXTS[2]]), output_hidden_states=True
        ).hidden_states
    assert_close(found.layers[:, 12:24], torch.stack(states)[:, 0], rtol=1e-4, atol=1e-5)


def test_reused_while_model_and_texts_are_unchanged(tmp_path, monkeypatch):
    lens = Lens(build("bert"))
    first = extract(lens, TEXTS, tmp_path)
    sizes = count_runs(lens, monkeypatch)
    again = extract(lens, TEXTS, tmp_path)
    assert sizes == []
    assert torch.equal(again.layers, first.layers)
    assert again.lengths == first.lengths
    extract(lens, TEXTS[1:], tmp_path)
    other_model = extract(Lens(build("bert", seed=1)), TEXTS, tmp_path)
    extract(lens, TEXTS, tmp_path, max_length=5)
    assert len(list(tmp_path.iterdir())) == 4
    assert not torch.equal(other_model.layers, first.layers)


def test_an_unfinished_array_is_never_taken_for_a_complete_one(tmp_path):
    lens = Lens(build("bert"))
    notes = []

    def stop(note):
        notes.append(note)
        if len(notes) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        extract(lens, TEXTS, tmp_path, batch_size=2, tell=stop)
    assert notes[-1] == "hidden states of 4 of 8 texts"
    assert not list(tmp_path.rglob("states.npy"))
    found = extract(lens, TEXTS, tmp_path, batch_size=2)
    assert_close(found.layers, alone(lens, TEXTS), rtol=1e-4, atol=1e-5)
    [file] = tmp_path.rglob("*.npy")
    file.write_bytes(b"broken")
    with pytest.raises(OutputFolderError, match="hidden"):
        extract(lens, TEXTS, tmp_path)


def test_what_cannot_be_extracted(tmp_path):
    for family, name in (("vit", "pixel_values"), ("whisper", "decoder_input_ids")):
        with pytest.raises(InputError, match=name):
            token_identifiability(Lens(build(family)), example(family), states=tmp_path)
    with pytest.raises(InputError, match="texts"):
        extract(Lens(build("bert")), [], tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("precious")
    with pytest.raises(OutputFolderError, match="could not write"):
        extract(Lens(build("bert")), TEXTS, tmp_path / "file")
