"""Heads, maps and rows of an audit by hand: tables of a few rows, without a model."""

from itertools import combinations, product

import polars as pl
import pytest
import torch

from helpers.heads import seeded, uniforms
from identilens.studies.audit.heads import (
    GROUPS,
    certain_error,
    groups_table,
    heads_table,
)

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

AT = {"kind": "encoder", "layer": 0}


def table_of(*rows):
    """Rows of two heads on a text each, where they say nothing else."""
    plain = {
        **AT, "text": 0, "certain_mass": 0.5, "certain_mass_error": 0.0625, "null_share": 0.25,
        "output_share": 0.5, "sink_mass": 0.75, "sink_norm_share": 0.0625,
        "sink_value_norm": 0.125, "first_mass": 0.5, "certain_rows": 2, "sink_token": "a",
        "d_v": 2, "stacked_rank": 4,
    }  # fmt: skip
    return pl.DataFrame([plain | row for row in rows])


TABLE = table_of(
    {"head": 0, "output_share": 0.25}, {"head": 1, "certain_mass": 0.25, "sink_mass": 0.25, "output_share": 0.75},
    {"head": 0, "text": 1, "certain_mass": 0.75, "sink_token": "b", "output_share": 0.375},
    {"head": 1, "text": 1, "certain_mass": None, "null_share": 0.75, "output_share": 0.625},
).with_columns(certain_mass_bfloat16="certain_mass")  # fmt: skip
ROWS = pl.DataFrame([
    {**AT, "text": 0, "head": 0, "query": 0, "certain_mass": 0.25, "sink_weight": 0.5, "sink_lo": 0.25, "sink_hi": 1.0},
    {**AT, "text": 0, "head": 0, "query": 2, "certain_mass": 0.75, "sink_weight": 0.25, "sink_lo": 0.0, "sink_hi": 0.5},
    {**AT, "text": 0, "head": 1, "query": 0, "certain_mass": 0.25, "sink_weight": 0.5, "sink_lo": 0.5, "sink_hi": 0.5},
    {**AT, "text": 0, "head": 1, "query": 2, "certain_mass": 0.25, "sink_weight": 0.5, "sink_lo": 0.5, "sink_hi": 0.5},
]).with_columns(certain_mass_bfloat16="certain_mass")  # fmt: skip


def effects(first, second, outcome="prediction", by="removal"):
    return pl.DataFrame([
        {**AT, "text": text, "head": head, "outcome": outcome, "by": by, "effect": effect}
        for head, found in enumerate((first, second)) for text, effect in enumerate(found)
    ])  # fmt: skip


def test_heads_by_both_axes():
    rows = ROWS.with_columns(certain_mass_bfloat16=pl.Series([0.59375, 0.65625, 0.25, 0.25]))
    heads = heads_table(TABLE, rows, effects((1.0, 3.0), (0.125, 0.375)))
    first, second = heads.iter_rows(named=True)
    assert first | {"kind": 0} == {
        "kind": 0, "layer": 0, "head": 0, "group": GROUPS[0], "certain_mass": 0.625,
        "certain_mass_error": pytest.approx(0.03125), "certain_mass_bfloat16": 0.625,
        "outcome": "prediction", "effect": 2.0, "relative_effect": 1.0, "relative_effect_error": 0.0,
        "relative_output": 0.625, "sink_token": "a", "sink_mass": 0.75,
        "sink_weight": 0.375, "sink_lo": 0.125, "sink_hi": 0.75, "sink_norm_share": 0.0625, "sink_value_norm": 0.125,
        "first_mass": 0.5, "null_share": 0.25, "certain_rows": 4,
    }  # fmt: skip
    assert (second["group"], second["certain_mass"], second["null_share"]) == (GROUPS[2], 0.25, 0.5)
    assert second["certain_mass_error"] == 0, "rows that are alike"
    assert second["relative_effect"] == 0.125
    assert second["relative_output"] == 1.375
    for measured, moved, groups in (
        (rows, effects((1.0, 3.0), (0.09, 0.27)), [0, 3]),
        (rows, effects((1.0, 3.0), (0.375, 1.125), "states"), [0, 2]),
        (ROWS, effects((1.0, 3.0), (0.5, 1.5)), [4, 2]),
        (rows, effects((0.0, 0.0), (0.0, 0.0)), [1, 3]),
    ):
        found = heads_table(TABLE, measured, moved)["group"]
        assert found.to_list() == [GROUPS[number] for number in groups]
    # Of each text's largest effect half and a tenth: 0.3 on average, give or take 0.2.
    torn = heads_table(TABLE, rows, effects((1.0, 3.0), (0.5, 0.3)))
    assert torn["relative_effect_error"].to_list() == pytest.approx([0.0, 0.2])
    assert torn["group"].to_list() == [GROUPS[0], "undecided"]
    less = TABLE.with_columns(certain_mass_bfloat16=pl.col("certain_mass") - 0.26)
    assert heads_table(less, rows, effects((1.0, 3.0), (0.0, 0.0)))["group"].to_list() == [
        GROUPS[2],
        GROUPS[3],
    ]
    unknown = heads_table(TABLE, rows, effects((1.0,), (1.0,)).clear())
    assert unknown["group"].to_list() == [None, None]
    groups = groups_table(heads)
    assert groups["heads"].to_list() == [1, 0, 1, 0, 0]
    assert groups["certain_mass_bfloat16"].to_list() == [0.625, None, 0.25, None, None]


def sizes(queries, layers=1):
    """A table of a text with so many queries in each layer."""
    return pl.DataFrame(
        [{**AT, "layer": layer, "text": 0, "n_query": queries} for layer in range(layers)]
    )


def test_the_squared_error_over_queries_is_on_average_the_variance_of_the_mean_over_all_draws():
    masses = uniforms(seeded(), 2, 3, 5)  # [layer, head, query]
    means, squares = [], []
    # Every draw of 3 of 5 queries in one layer with every such draw in the other.
    for queries in product(combinations(range(5), 3), repeat=2):
        rows = pl.DataFrame([
            {**AT, "text": 0, "layer": layer, "head": head, "query": query,
             "certain_mass_bfloat16": float(masses[layer, head, query])}
            for layer in range(2) for query in queries[layer] for head in range(3)
        ])  # fmt: skip
        means.append(rows["certain_mass_bfloat16"].mean())
        squares.append(certain_error(rows, sizes(5, 2))[0] ** 2)
    assert sum(squares) / len(squares) == pytest.approx(
        torch.tensor(means).var(correction=0).item()
    )
