"""What is said and drawn of contributions whose tables are written by hand: the texts are beside this file."""

from dataclasses import replace

import polars as pl
import pytest

from helpers.telling import recorded, told
from helpers.written import mixed
from identilens.studies.mixing.tagging import TAG_COLUMNS


def of_two_stacks():
    """A text of an encoder-decoder with tags, whose source is tracked."""
    parts = [mixed(1, kind) for kind in ("encoder", "decoder", "cross")]
    table, names = (
        pl.concat([getattr(part, name) for part in parts]) for name in ("table", "token_names")
    )
    rows = [(0, place, tag) for place, tag in enumerate(("[CLS]", "JJ", "NN", "[SEP]"))]
    tags = pl.DataFrame(rows, schema=TAG_COLUMNS, orient="row")
    return replace(parts[0], table=table, token_names=names, tags=tags).tracking("sky")


CASES = {
    "two texts": mixed,
    "a decoder": lambda: mixed(1, "decoder").tracking("red"),
    "an encoder-decoder": of_two_stacks,
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
