"""What is said and drawn of token identifiability whose tables are written by hand: the texts are beside this file."""

from functools import partial

import pytest

from helpers.telling import recorded, told
from helpers.written import first_rows, identified
from identilens.studies.tokens.result import EXPERIMENTS

CASES = {
    **{name: partial(identified, name) for name in EXPERIMENTS},
    "two checkpoints": lambda: identified("across-layers", ("model", "compared"), 1),
    "one row": lambda: first_rows(identified()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
