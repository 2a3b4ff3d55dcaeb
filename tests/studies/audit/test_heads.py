"""Heads by both axes, each in one of four groups."""

import polars as pl
import pytest

import identilens as idl
from helpers.audits import TEXTS


def test_heads_stand_in_four_groups(bundled):
    heads = idl.audit(bundled, TEXTS[:1], certain_rows=2, examples=1).heads()
    assert len(heads) == 72
    means = heads.group_by("layer").agg(pl.col("relative_output").mean())
    assert means["relative_output"].to_list() == pytest.approx([1.0] * 6)
    for row in heads.iter_rows(named=True):
        first, second = row["group"].split(" and ")
        assert (first == "determined") == (row["certain_mass"] >= 0.5)
        assert (second == "influential") == (row["relative_effect"] >= 0.3)
        assert row["relative_effect"] == pytest.approx(row["effect"] / heads["effect"].max())
        assert row["sink_lo"] <= row["sink_hi"]
    assert heads["group"].n_unique() > 1
    assert (
        idl.audit(bundled, TEXTS[:1], layers=[0], certain_rows=0).heads()["group"].null_count()
        == 12
    )
