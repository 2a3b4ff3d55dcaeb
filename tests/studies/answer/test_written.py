"""What is said and drawn of answers whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import answered

CASES = {
    "two texts": answered,
    "one text and tolerance": lambda: answered(1, tolerances=("0",)),
    "no rows bounded": lambda: answered(1, bounded=0),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn_is_as_recorded(name):
    assert told(CASES[name]()) == recorded(__file__, name)
