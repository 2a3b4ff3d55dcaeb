"""What is said and drawn of audits whose tables are written by hand: the texts are beside this file."""

import pytest

from helpers.telling import recorded, told
from helpers.written import audited, first_rows

CASES = {
    "two texts": audited,
    "no rows, no correlation, two kinds": lambda: audited(
        1, ("encoder", "decoder"), rows=False, pearson=False, d_v=64
    ),
    "other layers": lambda: audited(
        1, model={"layers_without_attention": ["0"], "layers_with_other_mixers": ["1", "2"]}
    ),
    "one row": lambda: first_rows(audited()),
}


@pytest.mark.parametrize("name", CASES)
def test_all_that_is_said_and_drawn(name):
    assert told(CASES[name]()) == recorded(__file__, name)
