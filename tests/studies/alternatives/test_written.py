"""What is said and drawn of alternatives whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import alternatives, first_rows

CASES = {
    "two texts": alternatives,
    "none": lambda: alternatives(1, found=False),
    "one row": lambda: first_rows(alternatives()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
