"""What is said and drawn of contributions whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import mixed

CASES = {
    "two texts": mixed,
    "a decoder": lambda: mixed(1, "decoder").tracking("red"),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
