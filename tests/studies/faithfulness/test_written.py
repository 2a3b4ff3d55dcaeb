"""What is said and drawn of explanations whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import faithfulness, first_rows

CASES = {
    "two texts": faithfulness,
    "determined": lambda: faithfulness(1, determined=True, states=False),
    "one row": lambda: first_rows(faithfulness()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
