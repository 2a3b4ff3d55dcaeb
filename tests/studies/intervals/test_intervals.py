"""Intervals of texts."""

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers import zoo
from identilens.errors import InputError
from identilens.measures.attention import iterate_alternatives

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the lower meadow would stand under water until the end of the month."
)


@pytest.fixture(scope="module")
def head(bundled):
    return idl.intervals(bundled, TEXT, layers=3, heads=7)


def test_every_interval_holds_the_weight_and_every_alternative(head, bundled):
    table = head.table
    assert ((table["lo"] <= table["weight"]) & (table["weight"] <= table["hi"])).all()
    captured = next(bundled.capture(TEXT, weights=True))
    seen = next(one for one in captured.heads if (one.layer, one.head) == (3, 7))
    n = len(seen.weights)
    assert len(table) == n * n
    assert (head.rows["simplex_nullity"] == n - 33).all()
    lo, hi, least = (torch.tensor(table[name].to_list()).view(n, n) for name in ("lo", "hi", "minimum_norm"))
    order = head.order
    query, above, below = (torch.tensor(order[name].to_list()) for name in ("query", "above", "below"))
    drawn = iterate_alternatives(
        seen.weights, seen.projected, 20, method="uniform", generator=torch.Generator().manual_seed(0)
    )
    for other in drawn:
        assert (other >= lo - 1e-7).all()
        assert (other <= hi + 1e-7).all()
        assert (other[query, above] > other[query, below]).all(), "certified pairs are never reversed"
        assert (least.square().sum(-1) <= other.square().sum(-1) + 1e-9).all()
    tops = [(row, top) for row, top in enumerate(head.rows["certified_top"]) if top is not None]
    assert tops, "some queries of this text have a certain first key"
    assert all(seen.weights[row].argmax() == top for row, top in tops)


def test_queries_by_token_and_position(head, bundled):
    chosen = idl.intervals(bundled, TEXT, layers=3, heads=7, queries=["the", 0])
    names = chosen.names(0, "encoder", "query")
    places = [0] + [place for place, name in enumerate(names) if name == "the"]
    assert chosen.rows["query"].to_list() == places
    expected = head.table.filter(pl.col("query").is_in(places))
    assert_frame_equal(chosen.table, expected, abs_tol=1e-8)


def test_short_texts_are_points(bundled):
    found = idl.intervals(bundled, "A short one.", layers=0, heads=0)
    assert found.table["pinned"].all()
    assert (found.table["hi"] - found.table["lo"]).max() < 1e-8
    assert (found.rows["simplex_nullity"] == 0).all()
    assert "(100.0 %) are pinned" in found.summary().text


def test_masked_rows_have_their_own_keys():
    lens = idl.Lens(zoo.build("gpt2"))
    found = idl.intervals(lens, {"input_ids": torch.arange(5, 30)[None]}, layers=0, heads=1)
    assert (found.table["key"] <= found.table["query"]).all()
    assert found.rows["simplex_nullity"].to_list() == [max(0, row + 1 - 9) for row in range(25)]
    assert found.rows["pairs"].to_list() == [(row + 1) * row // 2 for row in range(25)]
    first = found.rows.filter(pl.col("simplex_nullity") == 0)["query"]
    assert found.table.filter(pl.col("query").is_in(first.implode()))["pinned"].all()


def test_images_have_positions_for_tokens():
    lens = idl.Lens(zoo.build("vit"))
    item = lens.read(zoo.example("vit"))[0]
    found = idl.intervals(lens, item, layers=0, heads=0, queries=[0, 3])
    assert found.rows["query"].to_list() == [0, 3]
    assert found.names(0, "encoder", "key")[0] == "[CLS]"
    assert ((found.table["lo"] <= found.table["weight"]) & (found.table["weight"] <= found.table["hi"])).all()
    others = idl.alternatives(lens, item, layers=0, heads=0, starts=1)
    assert others.table.drop_nulls("hidden_change")["hidden_change"].max() < 1e-4


def test_folder_run_resumes_and_loads(head, bundled, tmp_path):
    done = []

    def stop(rows, total, _note):
        done.append((rows, total))
        if rows > 10:
            raise KeyboardInterrupt

    options = {"layers": 3, "heads": 7, "out": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        idl.intervals(bundled, TEXT, **options, progress=stop)
    again = idl.intervals(bundled, TEXT, **options, resume=True)
    for name in idl.Intervals.schema:
        assert_frame_equal(getattr(again, name), getattr(head, name))
    assert done[:2] == [(0, len(head.rows)), (8, len(head.rows))]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pin_tolerance": 1.0}, "expected pin_tolerance below 1"),
        ({"queries": "absent"}, r"text 0 has no token or position 'absent' .* its tokens are \[CLS\] nobody"),
        ({"queries": 900}, "no token or position 900"),
        ({"pin_tolerance": -1.0}, "expected pin_tolerance of at least 0.* got -1.0"),
        ({"layers": 6}, "the model has layers 0 to 5; got 6"),
    ],
)
def test_bad_options(bundled, options, message):
    with pytest.raises(InputError, match=message):
        idl.intervals(bundled, TEXT, **options)
