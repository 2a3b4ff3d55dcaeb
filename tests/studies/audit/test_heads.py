"""Heads by both axes, each in one of four groups."""

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from helpers.audits import TEXTS


def test_heads_stand_in_four_groups(bundled):
    heads = idl.audit(bundled, TEXTS[:1], certain_rows=2, examples=1).heads()
    assert len(heads) == 72
    means = heads.group_by("layer").agg(pl.col("relative_output").mean())
    assert means["relative_output"].to_list() == pytest.approx([1.0] * 6)
    for row in heads.iter_rows(named=True):
        first, second = row["group"].split(" and ")
        assert (first == "mostly certain") == (row["certain_mass_bfloat16"] >= 0.5)
        assert (second == "influential") == (row["relative_effect"] >= 0.3)
        assert row["relative_effect"] == pytest.approx(row["effect"] / heads["effect"].max())
        assert row["sink_lo"] <= row["sink_hi"]
    assert heads["group"].n_unique() > 1
    assert (
        idl.audit(bundled, TEXTS[:1], layers=[0], certain_rows=0).heads()["group"].null_count()
        == 12
    )


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
