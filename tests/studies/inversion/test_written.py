"""What is said and drawn of margins whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import first_rows, inverted

CASES = {
    "two texts": inverted,
    "an encoder": lambda: inverted(1, causal=False),
    "no bits": lambda: inverted(1, bits=()),
    "one row": lambda: first_rows(inverted()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
