"""Tables behind the figures, from contributions small enough to work out by hand."""

import numpy as np
import polars as pl
import pytest

from helpers.mixings import random_mixing
from identilens.errors import InputError
from identilens.measures.mixing import (
    box_statistics,
    boxes_by_tag,
    by_relative_position,
    context_of_token,
    neighbour_groups,
    rollout_correlation,
    track_token,
)
from identilens.measures.mixing.tracking import find_token


@pytest.fixture
def random():
    tokens = [
        ["[CLS]", "a", "[SEP]", "[SEP]"],
        ["[CLS]", "b", "a", "a", "c", "[SEP]", "d", "e", "f", "g", "h", "i", "[SEP]"],
    ]
    return random_mixing(tokens)


def test_own_contribution_and_largest(random):
    arrays, result = random
    own = result.by_token()
    assert len(own) == 3 * (4 + 13)
    for text, array in enumerate(arrays):
        rows = own.filter(pl.col("text") == text).sort("layer", "position")
        np.testing.assert_array_equal(
            rows["contribution"], np.diagonal(array, axis1=1, axis2=2).flatten()
        )
        np.testing.assert_array_equal(
            rows["largest"], (array.argmax(2) == np.arange(array.shape[1])).flatten()
        )
    layers = result.by_layer()
    every = np.concatenate([np.diagonal(array[1]) for array in arrays])
    assert layers["median_own"][1] == pytest.approx(np.median(every))
    wrong = np.concatenate([array[1].argmax(1) != np.arange(len(array[1])) for array in arrays])
    assert layers["not_largest"][1] == pytest.approx(wrong.mean())


def test_boxes_leave_outliers_outside_the_whiskers():
    rows = pl.DataFrame(
        {"kind": ["encoder"] * 6, "layer": [1] * 6, "contribution": [1.0, 2, 3, 4, 5, 100]}
    )
    box = box_statistics(rows).row(0, named=True)
    assert (box["low"], box["q1"], box["median"], box["q3"], box["high"]) == (1, 2.25, 3.5, 4.75, 5)
    assert box["mean"] == pytest.approx(115 / 6)
    assert box["tokens"] == 6
    assert "not_largest" not in box


def test_neighbour_groups_by_loops(random):
    arrays, result = random
    found = neighbour_groups(result.table)
    groups = {
        "1st": (1, 1), "2nd": (2, 2), "3rd": (3, 3), "4th-5th": (4, 5), "6th-10th": (6, 10),
        "11th onwards": (11, 99),
    }  # fmt: skip
    assert found["group"].unique(maintain_order=True).to_list() == list(groups)
    for name, (low, high) in groups.items():
        means = []
        for layer in range(3):
            tokens = []
            for array in arrays:
                n = len(array[layer])
                for hidden in range(n):
                    near = [
                        array[layer, hidden, i] for i in range(n) if low <= abs(i - hidden) <= high
                    ]
                    tokens += [np.mean(near)] if near else []
            means.append(np.mean(tokens))
        rows = found.filter(pl.col("group") == name)
        np.testing.assert_allclose(rows["mean"], means)
        np.testing.assert_allclose(rows["share"], np.array(means) / sum(means))


def test_relative_positions_by_loops(random):
    arrays, result = random
    found = by_relative_position(result.table)
    assert found["layer"].unique().sort().to_list() == [1, 2, 3]
    rows = found.filter(pl.col("layer") == 3)
    assert rows["offset"].to_list() == [offset for offset in range(-12, 13) if offset]
    totals = {
        offset: sum(np.trace(array[2], offset) for array in arrays) for offset in rows["offset"]
    }
    np.testing.assert_allclose(rows["total"], list(totals.values()))
    np.testing.assert_allclose(
        rows["share"], np.array(list(totals.values())) / sum(totals.values())
    )
    assert rows["pairs"].to_list()[:2] == [1, 2]


def test_context_centred_on_another_token(random):
    arrays, result = random
    found = context_of_token(result.table, result.token_names, "[CLS]", "[SEP]").filter(layer=2)
    # The first [SEP] stands at 2 and at 5; the own input of [CLS] is left out.
    expected = {}
    for array, separator in zip(arrays, (2, 5), strict=True):
        for position in range(1, len(array[1])):
            expected[position - separator] = (
                expected.get(position - separator, 0) + array[1, 0, position]
            )
    assert found["offset"].to_list() == sorted(expected)
    np.testing.assert_allclose(found["total"], [expected[offset] for offset in sorted(expected)])
    assert found["share"].sum() == pytest.approx(1)
    assert found.filter(pl.col("offset") == 0)["texts"].item() == 2
    own = context_of_token(result.table, result.token_names).filter(layer=1)
    assert own["offset"].min() == 1
    assert not len(context_of_token(result.table, result.token_names, "[MASK]", "[SEP]"))


def test_correlation_with_and_without_the_own_token(random):
    arrays, result = random
    found = rollout_correlation(result.table)
    layer = found.filter((pl.col("layer") == 2) & (pl.col("rollout") == "raw"))
    flat = [array[1].flatten() for array in arrays]
    expected = np.mean([np.corrcoef(values, values**2)[0, 1] for values in flat])
    assert layer.filter(pl.col("pairs") == "all")["pearson"].item() == pytest.approx(
        expected, abs=1e-6
    )
    others = [array[1][~np.eye(len(array[1]), dtype=bool)] for array in arrays]
    expected = np.mean([np.corrcoef(values, values**2)[0, 1] for values in others])
    assert layer.filter(pl.col("pairs") == "context")["pearson"].item() == pytest.approx(
        expected, abs=1e-6
    )
    # The square rises with the value, one less the value falls: ranks agree or are reversed.
    ranks = dict(
        found.filter(pl.col("pairs") == "all")
        .group_by("rollout")
        .agg(pl.col("spearman").mean())
        .iter_rows()
    )
    assert ranks["raw"] == pytest.approx(1)
    assert ranks["effective"] == pytest.approx(-1, abs=1e-3)


TOKENS = [["a", "b", "c"], ["d", "e"]]
TAGS = pl.DataFrame(
    {"text": [0, 0, 0, 1, 1], "position": [0, 1, 2, 0, 1], "tag": ["X", "Y", "X", "Y", "X"]},
    schema={"text": pl.Int32, "position": pl.Int32, "tag": pl.String},
)


def test_boxes_of_each_tag_in_the_order_of_the_last_layer():
    arrays, result = random_mixing(TOKENS, layers=2)
    found = boxes_by_tag(result.by_token(), TAGS)
    for layer in (1, 2):
        first, second = (array[layer - 1].diagonal() for array in arrays)
        own = {"X": sorted([first[0], first[2], second[1]])[1], "Y": (first[1] + second[0]) / 2}
        rows = found.filter(layer=layer)
        assert dict(zip(rows["tag"], rows["median"], strict=True)) == pytest.approx(own)
        assert dict(zip(rows["tag"], rows["tokens"], strict=True)) == {"X": 3, "Y": 2}
    last = found.filter(layer=2)
    assert last["median"].is_sorted(descending=True)
    assert found.filter(layer=1)["tag"].to_list() == last["tag"].to_list()


TEXTS = [["[CLS]", "Ġthe", "#"], ["[CLS]", "sea", "##side", "the"]]


@pytest.mark.parametrize(
    ("token", "place"),
    [("sea", (1, 1)), ("the", (1, 3)), ("Ġthe", (0, 1)), ("side", (1, 2)), ("#", (0, 2))],
)
def test_a_token_is_found_as_written_before_it_is_found_without_its_marks(token, place):
    assert find_token(TEXTS, token) == place


def test_pieces_of_a_word_that_is_not_there_are_named_first():
    with pytest.raises(
        InputError, match="no text contains the token 'Seaside'; tokens such as 'sea', '##side'"
    ):
        find_token(TEXTS, "Seaside")


def tracked_tables():
    """Two texts of an encoder and a decoder; a contribution is the number of its row."""
    sides = [
        (text, kind, side, position, f"{side[0]}{position % 2}")
        for text in (0, 1)
        for kind, sizes in (("encoder", (2, 2)), ("decoder", (2, 3)))
        for side, size in zip(("hidden", "input"), sizes, strict=True)
        for position in range(size)
    ]
    columns = ["text", "kind", "side", "position", "token"]
    tokens = pl.DataFrame(sides, columns, orient="row")
    place = [
        (text, kind, layer, hidden, position)
        for text in (0, 1)
        for kind, inputs in (("encoder", 2), ("decoder", 3))
        for layer in (0, 1)
        for hidden in (0, 1)
        for position in range(inputs)
    ]
    table = pl.DataFrame(place, ["text", "kind", "layer", "hidden", "input"], orient="row")
    number = pl.int_range(pl.len()).cast(pl.Float64)
    return table.with_columns(contribution=number, standard_error=-number), tokens.reverse()


def test_a_tracked_token_has_every_inputs_contribution_in_every_layer():
    table, tokens = tracked_tables()
    rows = [(layer, at, f"i{at % 2}") for layer in (0, 1) for at in (0, 1)]
    numbers = [2.0, 3.0, 6.0, 7.0]
    expected = [(*row, number, -number) for row, number in zip(rows, numbers, strict=True)]
    assert track_token(table, tokens, "h1").rows() == expected
    assert track_token(table, tokens, 1, kind="encoder").rows() == expected
    later = track_token(table, tokens, 0, text=1, kind="decoder")
    assert later["token"].to_list() == ["i0", "i1", "i0"] * 2
    assert later["contribution"].to_list() == [28.0, 29.0, 30.0, 34.0, 35.0, 36.0]
    for wrong, words in (
        ({"token": "h1", "text": 2}, "text from 0 to 1 with encoder"),
        ({"token": 0, "kind": "cross"}, "with cross states"), ({"token": "x"}, "h0 h1"),
        ({"token": 2}, "positions 0 to 1; got 2"), ({"token": -1}, "got -1"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            track_token(table, tokens, **wrong)
