"""Bounds of rollouts of models: ends put back into the model, ranks, several texts, tables, reports and refusals."""

from itertools import product
from typing import Literal

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, example, ids, tiny_decoder
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads
from identilens.models.lens import Lens
from identilens.models.rollouts import rollouts_by_kind, self_attention

TEXT = ids(14)
ENDS: tuple[Literal["lo", "hi"], ...] = ("lo", "hi")


def rolled(maps, layers, heads):
    """The rollout of maps by address."""
    kind = next(iter(maps))[2]
    stack = [torch.stack([maps[layer, head, kind] for head in range(heads)]) for layer in layers]
    return attention_rollout(torch.stack([mean_over_heads(one) for one in stack]))[-1]


@pytest.fixture(scope="module")
def bert():
    return Lens(build("bert"))


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "vit", "gemma2"])
def test_ends_put_into_the_model_leave_it_as_it_is_and_have_the_stated_rollout(family):
    lens = Lens(build(family).double())
    given = [TEXT]
    if family == "vit":
        given = {"pixel_values": example(family)["pixel_values"][:1].double()}
    [item] = lens.read(given)
    found = idl.rollout(lens, given, targets=(1, 2), witnesses=True, tolerance=0)
    plain = lens.substitute({}, item)
    heads = lens.sites(item)[0].heads
    [own] = rollouts_by_kind(self_attention(lens, item)).values()
    for target in (1, 2):
        rows = found.table.filter(target=target)
        columns = rows.select("value", "lo", "hi").to_torch()
        queries = rows["query"].to_list()
        assert_close(columns[:, 0], own.raw[-1][queries, target], atol=1e-7, rtol=0)
        for column, end in enumerate(ENDS, 1):
            maps = found.witness(0, target, end)
            changed = lens.substitute(maps, item)
            for sequence, states in plain.hidden_states.items():
                moved = (changed.hidden_states[sequence] - states).flatten(1).norm(dim=1)
                largest = float((moved / states.flatten(1).norm(dim=1)).max())
                told = found.witnesses.filter(target=target, end=end)["moved"].item()
                assert told == pytest.approx(largest, rel=0.2, abs=1e-15)
                assert largest <= 1e-5
            again = rolled(maps, range(len(lens.sites(item))), heads)[queries, target]
            assert_close(again, columns[:, column], atol=1e-7, rtol=0)
    assert found.table.select((pl.col("hi") - pl.col("lo")).max()).item() > 1e-3
    assert found.witnesses.select("target", "end").rows() == [*product((1, 2), ENDS)]
    assert found.witnesses["moved"].max() < 1e-5


def test_the_bundled_encoder_keeps_every_hidden_state(bundled):
    text = idl.examples()[0]
    found = idl.rollout(bundled, text, queries="once", targets=11, witnesses=True, tolerance=0)
    plain = bundled.substitute({}, text).hidden_states["encoder"]
    for end in ENDS:
        maps = found.witness(0, 11, end)
        states = bundled.substitute(maps, text).hidden_states["encoder"]
        moved = (states - plain).flatten(1).norm(dim=1) / plain.flatten(1).norm(dim=1)
        assert moved.max() <= 1e-5
        again = rolled(maps, range(6), 12)[found.table["query"].to_list(), 11]
        assert_close(again, found.table[end].to_torch(), atol=1e-7, rtol=0)
    said = found.summary().text
    assert "with every head's output the same, exactly, it may be from 0.0054" in said


def test_ranks_are_known_where_all_tokens_are_targets(bert):
    found = idl.rollout(bert, [TEXT], queries=3, tolerance=0)
    for row in found.table.rows(named=True):
        assert row["highest_rank"] <= row["rank"] <= row["lowest_rank"]
    alone = idl.rollout(bert, [TEXT], queries=3, targets=2, tolerance=0)
    assert alone.table["lowest_rank"].to_list() == [None]
    assert alone.rows["certified"].to_list() == [None]


def test_a_decoder_lists_the_tokens_that_a_query_can_see_and_short_rows_are_points():
    found = idl.rollout(tiny_decoder(2), [ids(9), ids(5)], queries=("last", 1), tolerance=0)
    assert found.table.filter(text=0, query=8)["target"].to_list() == list(range(9))
    short = found.table.filter(text=0, query=1)
    assert short["target"].to_list() == [0, 1]
    assert short.select((pl.col("hi") - pl.col("lo")).max()).item() < 1e-12
    assert short["lowest_rank"].to_list() == short["rank"].to_list()
    assert found.rows.filter(query=1)["certified"].all()
    assert found.rows["tokens"].to_list() == [2, 9, 2, 5]


def test_tolerances_widen_and_are_hold_later_layers(bert):
    found = idl.rollout(bert, [TEXT], queries=3, targets=2, tolerance=("0", "1%", "10%"))
    widths = found.table.select(pl.col("hi") - pl.col("lo")).to_series().to_list()
    assert widths[0] < widths[1] < widths[2]
    alone = idl.rollout(bert, [TEXT], queries=3, targets=2, tolerance="1%").summary().text
    assert (
        "up to 1 % of its length, and weights and values of later layers held as they are" in alone
    )
