"""What is said and drawn of sources whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import first_rows, sourced

CASES = {
    "one logit": sourced,
    "a difference and a direction": lambda: sourced(("' he' − ' she'", "the direction"), ("1%",)),
    "one row": lambda: first_rows(sourced()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
