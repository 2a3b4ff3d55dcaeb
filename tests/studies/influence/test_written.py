"""What is said and drawn of effects whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import first_rows, influenced

CASES = {
    "prediction": influenced,
    "states, one text, heads only": lambda: influenced("states", 1, rows=False),
    "an answer": lambda: influenced(texts=1, answer="the sea"),
    "one row": lambda: first_rows(influenced()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
