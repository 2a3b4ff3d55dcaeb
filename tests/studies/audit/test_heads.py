"""Heads by both axes, each in one of four groups."""

import pytest
import torch

import identilens as idl
from helpers import zoo


def test_effects_are_those_of_the_examples_without_each_head():
    lens, texts = idl.Lens(zoo.build("llama")), [zoo.ids(9), zoo.ids(6)]
    audit = idl.audit(lens, texts, certain_rows=0, examples=1, effects="removal")
    assert len(audit.effects) == 8, "two layers of four heads, in one text"
    assert audit.effects["text"].n_unique() == 1
    for row in audit.effects.iter_rows(named=True):
        ids = texts[row["text"]]
        none = torch.zeros(len(ids), len(ids))
        whole, without = (
            lens.substitute(put, [ids]).logits.double().log_softmax(-1)
            for put in ({}, {(row["layer"], row["head"]): none})
        )
        expected = float((whole.exp() * (whole - without)).sum(-1).mean())
        assert row["effect"] == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert idl.audit(lens, texts, certain_rows=0, effects="none").effects.is_empty()
