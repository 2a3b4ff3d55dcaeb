"""A hidden token that is followed: found as it is written in the tables, or without the marks of a word's start."""

import pytest

from identilens.errors import InputError
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
