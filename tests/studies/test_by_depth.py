"""Audits of several models by relative depth."""

from copy import deepcopy

import polars as pl
import pytest

import identilens as idl
from helpers.zoo import build, ids


@pytest.fixture(scope="module")
def audits(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    found = []
    deeper = build("bert")
    deeper.encoder.layer.append(deepcopy(deeper.encoder.layer[0]))
    for family, model in (("bert", deeper), ("llama", build("llama"))):
        lens = idl.Lens(model, name=family)
        texts = [ids(24), ids(17)]
        found.append(idl.audit(lens, texts, certain_rows=2, examples=2, out=place / family))
    return found


@pytest.fixture(scope="module")
def found(audits):
    return idl.compare_models(*audits)


def test_layers_stand_at_their_relative_depth(audits, found):
    assert found.table["model"].to_list() == ["bert"] * 3 + ["llama"] * 2
    assert found.table["depth"].to_list() == [0, 0.5, 1, 0, 1]
    assert found.table["keys"].to_list() == [20.5] * 5
    for audit, name in zip(audits, ("bert", "llama"), strict=True):
        rows = found.table.filter(model=name)
        for layer, row in enumerate(rows.iter_rows(named=True)):
            own = audit.table.filter(layer=layer)
            assert row["null_share"] == pytest.approx(own["null_share"].mean())
            assert row["certain_mass"] == pytest.approx(own["certain_mass"].mean())
            effects = (
                audit.effects.filter(layer=layer).group_by("head").agg(pl.col("effect").mean())
            )
            assert row["effect"] == pytest.approx(effects["effect"].mean())
            assert row["largest_effect"] == pytest.approx(effects["effect"].max())
