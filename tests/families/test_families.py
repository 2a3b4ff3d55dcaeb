"""Tiny models of model types by their name alone: served, refused with a reason, or a defect that is told."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import BertConfig

import families.trial as trials
from families.run import write_table
from families.tiny import LADDER, VOCABULARY, model_types, sized, tiny_models
from families.trial import AGREEMENT, trial
from helpers.command import failing, identilens
from identilens.errors import InputError
from identilens.families import table as packaged
from identilens.families.table import Trial, known, read_table
from identilens.models import Lens


@pytest.mark.parametrize(
    ("family", "inputs", "layers"),
    [("bert", "text", 2), ("bart", "text", 6), ("llama", "text", 2), ("t5", "text", 6), ("vit", "picture", 2),
     ("wav2vec2", "recording", 2)],
)  # fmt: skip
def test_a_type_that_is_served(family, inputs, layers):
    found = trial(family)
    assert (found.outcome, found.inputs, found.layers) == ("served", inputs, layers), found
    assert found.difference is not None
    assert found.difference <= AGREEMENT


def test_texts_with_pictures_have_as_many_places_as_the_picture():
    found = trial("idefics3")
    assert found.outcome == "served"
    assert found.inputs == "text, text with picture"


def test_layers_without_attention_are_named():
    assert "layers without attention: layers.0 (JambaMambaDecoderLayer)" in trial("jamba").reason


@pytest.mark.parametrize("family", ["granitemoehybrid", "recurrent_gemma", "minimax"])
def test_tiny_models_have_what_their_type_is_about(family):
    found = trial(family)
    assert found.outcome == "served"
    assert "layers without attention: layers." in found.reason


def test_weights_of_tiny_models_are_far_from_even():
    text = next(Lens(next(tiny_models("llama"))).capture([list(range(3, 12))], weights=True))
    assert float(text.layers[0].weights[:, -1].amax(-1).mean()) > 0.5


def test_a_type_without_attention():
    found = trial("resnet")
    assert found.outcome == "no attention"
    assert found.reason.startswith("ResNetModel")


def test_a_part_of_other_models():
    assert trial("align_text_model").outcome == "part"


def test_other_weights_than_the_family_s_own_are_told(monkeypatch):
    def turned(*given):
        return [[(kind, one.roll(1, 0)) for kind, one in text] for text in own(*given)]

    own = trials._weights
    monkeypatch.setattr(trials, "_weights", turned)
    found = trial("gpt2")
    assert found.outcome == "wrong"
    assert "differ from output_attentions" in found.reason


def test_an_error_that_is_not_ours_is_told(monkeypatch):
    def broken(*given):
        raise IndexError("list index out of range")

    monkeypatch.setattr(trials, "_weights", broken)
    found = trial("bert")
    assert found.outcome == "crash"
    assert found.reason == "text: IndexError: list index out of range"


def test_sizes_keep_their_proportions():
    config = sized(BertConfig(hidden_size=512, num_attention_heads=16), LADDER[0])
    assert (config.hidden_size, config.num_attention_heads, config.intermediate_size) == (
        32,
        16,
        192,
    )
    assert (config.num_hidden_layers, config.vocab_size) == (2, VOCABULARY)
    assert next(tiny_models("llama")).config.num_key_value_heads == 32


def test_names_of_types():
    assert known("Deberta_V2", ["bert", "deberta-v2"]) == "deberta-v2"
    with pytest.raises(InputError, match=r"has no model type 'lama'.*nearest are llama"):
        known("lama", model_types())


def test_the_table_comes_back_as_it_was_written(tmp_path, monkeypatch):
    made = [
        Trial("a", "served", "A", "interface", "text", 2, 1e-8, "b, c"),
        Trial("d", "not built", reason='"e"'),
    ]
    write_table(made, tmp_path / "families.csv")
    monkeypatch.setattr("identilens.families.table.files", lambda _: tmp_path)
    assert read_table() == {one.family: one for one in made}


def test_the_packaged_table_holds_every_type():
    table = read_table()
    # This library's own types are registered where its models were imported.
    # A lower version of transformers has fewer types than the table.
    assert set(model_types()) - {"identilens_dyck", "identifiable_encoder"} <= set(table)
    assert [one for one in table.values() if one.outcome in ("crash", "wrong")] == []
    assert sum(one.outcome == "served" for one in table.values()) >= 370
    assert all(one.reason for one in table.values() if one.outcome != "served")
    assert table["llama"] == replace(trial("llama"), difference=table["llama"].difference)


def test_the_command_tells_what_a_type_is():
    assert "served" in identilens("families", code=0).output
    told = identilens("families", "--family", "bert", code=0).output
    assert told.startswith(
        "bert: served, captured with proof. BertModel on text; 2 attention layers"
    )
    assert "resnet: no attention" in identilens("families", "--family", "resnet", code=0).output
    assert "The nearest are" in failing("families", "--family", "berd")


def test_the_table_names_no_place_of_a_machine():
    held = Path(packaged.__file__).with_name("families.csv").read_text(encoding="utf-8")
    assert not re.search(r"['\" ]/(?:[\w.-]+/){2}", held)
