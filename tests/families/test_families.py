"""Tiny models of model types by their name alone: served, refused with a reason, or a defect that is told."""

import re
from pathlib import Path

import polars as pl
import pytest
from transformers import BertConfig

import families.trial as trials
from families.tiny import LADDER, VOCABULARY, model_types, sized, tiny_models
from families.trial import AGREEMENT, trial
from identilens.cli.selfcheck import served_types
from identilens.models import Lens


@pytest.mark.parametrize(
    ("family", "inputs", "layers"),
    [("bert", "text", 2), ("bart", "text", 6), ("llama", "text", 2), ("t5", "text", 6), ("vit", "picture", 2),
     ("wav2vec2", "recording", 2), ("layoutlm", "text, text with boxes", 2),
     ("llava", "text, text with picture", 4), ("idefics3", "text, text with picture", 4)],
)  # fmt: skip
def test_a_type_that_is_served(family, inputs, layers):
    found = trial(family)
    assert (found.outcome, found.inputs, found.layers) == ("served", inputs, layers), found
    assert found.difference is not None
    assert found.difference <= (AGREEMENT if family == "t5" else 5e-5)


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


def test_the_table_holds_every_type_and_the_package_those_that_are_served():
    file = Path(__file__).parents[2] / "docs" / "results" / "families.csv"
    trials = pl.read_csv(file)
    outcomes = dict(trials.select("family", "outcome").rows())
    # This library's own types are registered where its models were imported.
    # A lower version of transformers has fewer types than the page.
    assert set(model_types()) - {"identilens_dyck", "identifiable_encoder"} <= set(outcomes)
    assert {"crash", "wrong"}.isdisjoint(outcomes.values())
    served = trials.filter(outcome="served")["family"].to_list()
    assert served == served_types()
    assert len(served) >= 370
    assert trials.filter(pl.col("outcome") != "served")["reason"].null_count() == 0
    assert trial("llama").outcome == "served"
    assert not re.search(r"['\" ]/(?:[\w.-]+/){2}", file.read_text("utf-8")), (
        "no place of a machine"
    )
