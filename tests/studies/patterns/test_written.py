"""What is said and drawn of scores whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import first_rows, scored

CASES = {
    "texts and sequences": scored,
    "one text and tolerance": lambda: scored(1, tolerances=("0",)),
    "one row": lambda: first_rows(scored()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
