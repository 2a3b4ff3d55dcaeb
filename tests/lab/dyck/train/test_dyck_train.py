"""Studies of trained models: tables, folders, resuming, heads that are and are not used."""

import polars as pl
import pytest
import torch

from helpers.dycks import MEASURING, QUICK, SETTINGS
from helpers.heads import seeded
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.sufficiency import uniform_transformer
from identilens.lab.dyck.train.measuring import head_rows
from identilens.lab.dyck.train.result import DyckRuns
from identilens.lab.dyck.train.study import train_dyck


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dyck") / "run"
    result = train_dyck(SETTINGS, seeds=[0, 1, 2], at_once=2, **MEASURING, out=folder)
    return result, folder


def test_the_tables_hold_every_setting_and_seed(study):
    result, _ = study
    assert result.settings == [one.name for one in SETTINGS]
    assert result.table.columns == list(DyckRuns.schema["table"])
    assert result.table.group_by("setting").len()["len"].to_list() == [3, 3]
    assert result.heads.columns == list(DyckRuns.schema["heads"])
    # One head behind the minimal layer, two in each of two layers otherwise.
    assert len(result.heads) == 3 * (1 + 4)
    assert result.patterns.columns == list(DyckRuns.schema["patterns"])
    assert result.variation.columns == list(DyckRuns.schema["variation"])
    assert len(result.variation) == 2 * (1 + 4)
    assert result.variation["seeds"].unique().to_list() == [3]
    assert len(result.curves) == 3 * 2 * QUICK.epochs
    violation = result.table.select("block", "violation")
    assert violation.filter(pl.col("block") == "minimal")["violation"].null_count() == 0
    assert violation.filter(pl.col("block") == "gpt")["violation"].null_count() == 3


def test_even_attention_is_needed_but_does_not_look_like_a_stack():
    tokens = with_start(Dyck().sample_complete(20, 28, seeded()))
    found = pl.DataFrame(head_rows(uniform_transformer(Dyck()), tokens))
    assert found["accuracy"].to_list() == [1, 1]
    # Even attention put in the place of even attention changes nothing; random attention does.
    assert found["even"].to_list() == [1, 1]
    assert found["random"].max() < 0.95
    assert found["removed"].max() < 0.9
    assert found["used"].all()
    assert not found["looks"].any()


def test_a_head_without_values_is_not_used():
    model = uniform_transformer(Dyck())
    with torch.no_grad():
        model.dyck.layers[1].attention.v_proj.weight.zero_()
    tokens = with_start(Dyck().sample_complete(20, 28, seeded()))
    found = pl.DataFrame(head_rows(model, tokens))
    assert found["used"].to_list() == [True, False]
    assert found["largest_fall"][1] == 0
