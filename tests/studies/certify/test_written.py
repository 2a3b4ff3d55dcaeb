"""What is said and drawn of certificates whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import certainty

CASES = {
    "rows of two heads": certainty,
    "a row": lambda: certainty(((0, 0),), ("0",)),
    "two kinds": lambda: certainty(((0, 0),), ("float32",), ("encoder", "decoder")),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
