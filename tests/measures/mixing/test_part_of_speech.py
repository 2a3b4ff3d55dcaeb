"""Own contributions split by tags."""

import polars as pl
import pytest

from helpers.mixings import random_mixing
from identilens.errors import InputError
from identilens.measures.mixing import boxes_by_tag

TOKENS = [["a", "b", "c"], ["d", "e"]]
TAGS = pl.DataFrame(
    {"text": [0, 0, 0, 1, 1], "position": [0, 1, 2, 0, 1], "tag": ["X", "Y", "X", "Y", "X"]},
    schema={"text": pl.Int32, "position": pl.Int32, "tag": pl.String},
)


def test_boxes_of_each_tag_in_the_order_of_the_last_layer():
    arrays, result = random_mixing(TOKENS, layers=2)
    found = boxes_by_tag(result.own(), TAGS)
    for layer in (1, 2):
        first, second = (array[layer - 1].diagonal() for array in arrays)
        own = {"X": sorted([first[0], first[2], second[1]])[1], "Y": (first[1] + second[0]) / 2}
        rows = found.filter(layer=layer)
        assert dict(zip(rows["tag"], rows["median"], strict=True)) == pytest.approx(own)
        assert dict(zip(rows["tag"], rows["tokens"], strict=True)) == {"X": 3, "Y": 2}
    last = found.filter(layer=2)
    assert last["median"].is_sorted(descending=True)
    assert found.filter(layer=1)["tag"].to_list() == last["tag"].to_list()


def test_tags_of_other_texts_are_refused():
    own = random_mixing(TOKENS)[1].own()
    with pytest.raises(InputError, match="tokens"):
        boxes_by_tag(own, TAGS.with_columns(text=1 - pl.col("text")))
