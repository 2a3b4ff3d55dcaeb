"""What is said and drawn of structures whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.structures import by_hand
from helpers.telling import recorded, told
from helpers.written import first_rows

CASES = {
    "two heads": by_hand,
    "two kinds": lambda: by_hand(("encoder", "cross")),
    "one row": lambda: first_rows(by_hand(measured=False)),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
