"""Heads, rows and what they are called: positions by name, parts of a study, and how much of a table a page takes."""

from types import SimpleNamespace
from typing import NamedTuple
from unittest import mock

import polars as pl
import pytest

from identilens.errors import InputError
from identilens.runs.study import Output
from identilens.studies import head_views
from identilens.studies.head_views import axis_tokens, of_whole_groups
from identilens.studies.heads import RowStudy, TextHeads, named_places
from identilens.studies.settings import RowSettings

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

NAMES = ("a", " b", "2", "a", "last")


@pytest.mark.parametrize(
    ("requested", "places"),
    [
        ("a", [0, 3]), ("b", [1]), (" b", [1]), ("2", [2]), (2, [2]), (0, [0]), (-1, [4]), ("-5", [0]), (4, [4]),
        ("last", [4]), ("3", [3]),
    ],
)  # fmt: skip
def test_positions_by_token_or_number(requested, places):
    assert named_places(NAMES, requested, 7) == places


@pytest.mark.parametrize(
    ("names", "requested", "places"),
    [
        (("<s>", " The", " t", "ail", "or", " wrote", ",", " tailor"), "wrote,", [5, 6]),
        (("<s>", " The", " t", "ail", "or", " wrote", " t", "ail"), "tailor", [2, 3, 4]),
        (("<s>", " The", " t", "ail", "or", " wrote", " t", "ail"), "tail", [6, 7]),
        (("[CLS]", "the", "tail", "##or", "wrote", "[SEP]"), "tailor", [2, 3]),
        (("[CLS]", "the", "tail", "##or", "wrote", "[SEP]"), "tailor wrote", [2, 3, 4]),
    ],
)  # fmt: skip
def test_a_word_of_several_tokens_stands_for_all_of_them(names, requested, places):
    assert named_places(names, requested, 0) == places
    with pytest.raises(InputError, match="no token"):
        named_places(names, "tailo", 0)


@pytest.mark.parametrize(
    ("names", "requested", "places"),
    [
        (("a", "...", "b"), ".", None), (("f", " (-", "1", ")", " y"), "-1", [4]),
        (("a", " b", "3)", " c"), "3", [3]), (("River", " and", " Riv", "er"), "River", [0, 2, 3]),
        (("un", "happy ", "man "), "unhappy", [0, 1]),
        (("He", " is", " un", "be", "liev", "able"), " unbelievable", [2, 3, 4, 5]),
        ((" a", " a", " b"), "a a", [0, 1]),
    ],
)  # fmt: skip
def test_words_begin_and_end_with_tokens(names, requested, places):
    if places is None:
        with pytest.raises(InputError, match="no token"):
            named_places(names, requested, 0)
    else:
        assert named_places(names, requested, 0) == places


@pytest.mark.parametrize("word", ["last", " last"])
def test_last_is_the_last_position_also_where_a_token_has_that_name(word):
    assert named_places(("a", word, "b"), "last", 0) == [2]


@pytest.mark.parametrize("requested", ["1,7", 5, -6, "c", "0x", "1234567890"])
def test_positions_that_a_text_lacks_are_named(requested):
    with pytest.raises(
        InputError, match=rf"text 7 has no token or position {requested!r} among its 5 queries"
    ):
        named_places(NAMES, requested, 7)


class Spot(NamedTuple):
    """What a place asks of its layer."""

    layer: int
    kind: str = "encoder"


SITES = [Spot(0), Spot(3)]


class Rows(RowStudy):
    """A study of rows that only notes what it is given."""

    name = "rows"
    result_type = SimpleNamespace(schema={"table": {"row": pl.Int64}})

    def __init__(self, heads, queries=None):
        self.told = []
        with (
            mock.patch.object(TextHeads, "of", return_value=heads),
            mock.patch("identilens.studies.heads.read_items", return_value=heads.items),
        ):
            super().__init__(heads.lens, [], RowSettings(queries=queries))

    def output(self, place, head, queries):
        self.told.append((place.text, head, tuple(queries)))
        return Output({"table": pl.DataFrame({"row": list(queries)}, schema={"row": pl.Int64})})


class Heads(TextHeads):
    """Heads of texts, which note how often each is read."""

    def read(self, place, rows=None):
        self.lens.append(place.row)
        return f"head {place.head}"


def heads(lengths):
    items = [SimpleNamespace(tokens={"encoder": tuple("abcdefghijklm"[:n])}) for n in lengths]
    return Heads([], items, [(SITES[0], 0), (SITES[0], 1)])


def test_rows_of_a_head_come_a_few_at_a_time_and_it_is_read_once():
    study = Rows(heads([9, 8]))
    assert list(study.sizes()) == [8, 1, 8, 1, 8, 8]
    assert study.unit == "rows"
    for part in (0, 1, 2, 3, 4):
        study.run(part)
    assert study.told[:3] == [
        (0, "head 0", (0, 1, 2, 3, 4, 5, 6, 7)), (0, "head 0", (8,)), (0, "head 1", (0, 1, 2, 3, 4, 5, 6, 7)),
    ]  # fmt: skip
    assert [(row["text"], row["head"]) for row in study.heads.lens] == [(0, 0), (0, 1), (1, 0)]
    assert list(Rows(heads([9, 8]), ("last", 0, "a")).sizes()) == [2] * 4
    with pytest.warns(UserWarning, match="of 1 of 2 texts no row is looked at, for lack of 'i'"):
        assert list(Rows(heads([9, 8]), ("i",)).sizes()) == [1, 1]
    with pytest.raises(InputError, match="text 0 has no token or position 'j'"):
        Rows(heads([9, 8]), ("i", "j"))


ROW = {"text": 1, "layer": 2, "head": 3, "kind": "cross"}
FRAME = pl.DataFrame({
    "text": [0, 0, 1, 1, 1], "layer": 0, "head": [1, 1, 0, 0, 0], "kind": ["cross"] * 2 + ["encoder"] * 3,
    "value": [1.0, 2.0, 3.0, 4.0, 5.0],
})  # fmt: skip


@pytest.mark.parametrize(("budget", "rows"), [(0, 2), (2, 2), (4, 2), (5, 5), (9, 5)])
def test_a_page_takes_whole_groups_and_always_the_first(budget, rows):
    assert len(of_whole_groups(FRAME, ["text"], budget)) == rows


def test_a_page_takes_a_largest_number_of_groups(monkeypatch):
    monkeypatch.setattr(head_views, "MOST_GROUPS", 1)
    assert of_whole_groups(FRAME, ["text"], 100)["text"].to_list() == [0, 0]
    assert of_whole_groups(FRAME.clear(), ["text"], 100).is_empty()


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
