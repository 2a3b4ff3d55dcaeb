"""Heads, rows and what they are called: positions by name, parts of a study, and how much of a table a page takes."""

import pytest

from identilens.errors import InputError
from identilens.studies.head_views import axis_tokens
from identilens.studies.heads import named_places

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

NAMES = ("a", " b", "2", "a", "last")


TAILOR = ("<s>", " The", " t", "ail", "or", " wrote", " t", "ail")
PIECES = ("[CLS]", "the", "tail", "##or", "wrote", "[SEP]")


@pytest.mark.parametrize(
    ("names", "requested", "places"),
    [
        (NAMES, "a", [0, 3]), (NAMES, "b", [1]), (NAMES, " b", [1]), (NAMES, "2", [2]), (NAMES, 2, [2]),
        (NAMES, 0, [0]), (NAMES, -1, [4]), (NAMES, "-5", [0]), (NAMES, "last", [4]), (NAMES, "3", [3]),
        (("<s>", " The", " t", "ail", "or", " wrote", ",", " tailor"), "wrote,", [5, 6]),
        (TAILOR, "tailor", [2, 3, 4]), (TAILOR, "tail", [6, 7]), (TAILOR, "tailo", None),
        (PIECES, "tailor", [2, 3]), (PIECES, "tailor wrote", [2, 3, 4]), (PIECES, "tailo", None),
        (("a", "...", "b"), ".", None), (("f", " (-", "1", ")", " y"), "-1", [4]),
        (("a", " b", "3)", " c"), "3", [3]), (("River", " and", " Riv", "er"), "River", [0, 2, 3]),
        (("un", "happy ", "man "), "unhappy", [0, 1]),
        (("He", " is", " un", "be", "liev", "able"), " unbelievable", [2, 3, 4, 5]),
        ((" a", " a", " b"), "a a", [0, 1]),
        # Also where a token has that name.
        (("a", "last", "b"), "last", [2]), (("a", " last", "b"), "last", [2]),
    ],
)  # fmt: skip
def test_positions_by_number_or_by_words_that_begin_and_end_with_tokens(names, requested, places):
    if places is None:
        with pytest.raises(InputError, match="no token"):
            named_places(names, requested, 0)
    else:
        assert named_places(names, requested, 0) == places


@pytest.mark.parametrize("requested", ["1,7", 5, -6, "c", "0x", "1234567890"])
def test_positions_that_a_text_lacks_are_named(requested):
    with pytest.raises(
        InputError, match=rf"text 7 has no token or position {requested!r} among its 5 queries"
    ):
        named_places(NAMES, requested, 7)


def test_tokens_stand_at_the_queries_and_keys_of_a_head():
    tokens = {"encoder": ["a", "b"], "decoder": ["c"]}
    sizes = {"n_query": 1, "n_key": 2}
    assert axis_tokens(tokens, {"kind": "cross", **sizes}) == (("c",), ("a", "b"))
    same = {"n_query": 2, "n_key": 2}
    assert axis_tokens(tokens, {"kind": "encoder", **same}) == (("a", "b"), ("a", "b"))
    assert axis_tokens(tokens, {"kind": "decoder", **sizes}) == (
        ("c",),
        ("position 0", "position 1"),
    )
