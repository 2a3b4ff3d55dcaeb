"""A segment has one colour in the marked answer and in the charts."""

import pytest

from helpers.charts import leaves
from helpers.written import answered

CASES = {
    "two texts": answered,
    "one text and tolerance": lambda: answered(1, tolerances=("0",)),
    "no rows bounded": lambda: answered(1, bounded=0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_segment_has_one_colour_in_the_marked_answer_and_the_charts(name):
    found = CASES[name]()
    marks = [mark for line in found.token_lines() for mark, _ in line.legend]
    colours = {mark.label: mark.series for mark in marks if mark.series is not None}
    assert colours.keys() == {"document", "question"}
    for chart in found.charts().values():
        for leaf in leaves(chart.to_dict()):
            order = leaf["encoding"]["color"]["scale"]["domain"]
            assert {segment: order.index(segment) for segment in colours} == colours


def test_a_conversation_is_filled_where_the_answer_needs_it():
    prompt, *_ = answered().conversations()
    marks = {mark.label: mark for mark, _ in prompt.legend}
    assert {name: mark.strong for name, mark in marks.items()} == {
        "document": True,
        "question": False,
    }
    assert [one.mark.label for one in prompt.tokens] == ["template", "question", "document"]
    assert (
        "without it 16 times less likely"
        in {mark.label: said for mark, said in prompt.legend}["document"]
    )
