"""A hidden token that is followed: found as it is written in the tables, or without the marks of a word's start."""

import polars as pl
import pytest

from identilens.errors import InputError
from identilens.measures.mixing import track_token
from identilens.measures.mixing.tracking import find_token

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
