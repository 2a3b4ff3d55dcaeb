"""Audits of several models by relative depth."""

import json
from copy import deepcopy
from dataclasses import replace

import polars as pl
import pytest

import identilens as idl
from helpers.command import failing, identilens
from helpers.zoo import build, ids
from identilens.errors import InputError


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


def test_the_finding_names_every_model_and_warns_of_other_texts(audits, found):
    lines = found.summary().text.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["bert, encoder", "llama, decoder"]
    share = found.table.filter(model="llama")["null_share"].mean()
    assert lines[1].endswith(f"null share {round(share, 3)}.")
    other = {**audits[1].provenance, "texts": {"count": 1, "sha256": ["11"]}}
    different = idl.compare_models(audits[0], replace(audits[1], provenance=other))
    assert different.summary().text.splitlines()[-1].startswith("The audits are of different texts")


def test_checkpoints_of_one_name_are_numbered(audits):
    found = idl.compare_models(audits[0], audits[1], audits[0])
    assert found.table["model"].unique(maintain_order=True).to_list() == [
        "bert (1)",
        "llama",
        "bert (2)",
    ]


def test_an_audit_without_rows_and_removals_has_gaps(tmp_path):
    audit = idl.audit(idl.Lens(build("bert")), [ids(9)], certain_rows=0, examples=0)
    found = idl.compare_models(audit)
    assert found.table["certain_mass"].null_count() == len(found.table) == 2
    assert "not looked at" in found.summary().text


def test_the_chart_has_a_line_for_each_model_and_a_choice_of_measures(found):
    drawn = found.charts()["depth"].to_dict()
    choice = next(one for one in drawn["params"] if one["name"].startswith("choose"))
    assert choice["bind"]["labels"][0] == "certain_mass"
    assert len(choice["bind"]["labels"]) == 5


@pytest.mark.parametrize("given", [0, 1])
def test_other_results_are_refused(given, found):
    with pytest.raises(InputError, match=r"expected results of audits; got .*identilens audit"):
        idl.compare_models(*given * [found])


def test_the_command_line_compares_many_(audits, tmp_path):
    runs = [str(one.folder) for one in audits]
    shown = json.loads(identilens("compare", *runs, "--by-depth", "--json").output)
    assert [row["depth"] for row in shown] == [0, 0.5, 1, 0, 1]
    shown = identilens("compare", *runs, runs[0], "--out", str(tmp_path / "many.html")).output
    assert "bert (2), encoder" in shown
    assert "Relative depth" in (tmp_path / "many.html").read_text()
    assert "--by-depth" in failing("compare", *runs)
