"""What an answer needs of its prompt: its probability without each segment, against runs of the model."""

from math import prod

import pytest
import torch

import identilens as idl
from helpers.charts import leaves
from helpers.chats import MESSAGES, answering
from helpers.written import answered
from identilens.models.chats import read_chats, read_prompt

CHAT = {
    "prompt": "snow fell on the harbour, and nobody came.",
    "segments": {"where": "the harbour", "who": [31, 37]},
}


def likely(lens, ids, answer):
    """The probability of each token of an answer, by one plain run."""
    with torch.no_grad():
        logits = lens.model(torch.tensor([[*ids, *answer]])).logits[0, -len(answer) - 1 : -1]
    return logits.double().softmax(-1)[range(len(answer)), answer].tolist()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "bundled-decoder"])
def test_it_is_that_of_a_plain_run_without_the_segment(family):
    lens = idl.load(family) if family == "bundled-decoder" else answering(family)
    prompt = read_prompt(lens.tokenizer, read_chats(CHAT)[0], 0)
    found = idl.answer(lens, CHAT, max_new_tokens=5, bounded=0)
    own = found.positions.drop_nulls("answer")
    given = torch.tensor([prompt.ids])
    made = lens.model.generate(
        given, attention_mask=torch.ones_like(given), max_new_tokens=5, do_sample=False
    )
    answer = made[0, len(prompt.ids) :].tolist()
    assert own["token"].to_list() == list(lens.reader.names(answer))
    whole = likely(lens, prompt.ids, answer)
    assert own["probability"].to_list() == pytest.approx(whole, rel=1e-4)
    assert set(found.needed["segment"]) == set(prompt.segments) - {"template"}
    needs = {one["segment"]: one for one in found.needs().iter_rows(named=True)}
    for segment in needs:
        kept = [
            number
            for number, name in zip(prompt.ids[:-1], prompt.segments[:-1], strict=True)
            if name != segment
        ] + prompt.ids[-1:]
        expected = likely(lens, kept, answer)
        each = found.needed.filter(segment=segment)
        assert each["token"].to_list() == list(range(5))
        assert each["without"].to_list() == pytest.approx(expected, rel=1e-4)
        row = needs[segment]
        assert row["probability"] == pytest.approx(prod(whole), rel=1e-3)
        assert row["without"] == pytest.approx(prod(expected), rel=1e-3)
        ratios = [after / before for after, before in zip(expected, whole, strict=True)]
        least = ratios.index(min(ratios))
        assert row["at"] == own["token"][least]
        assert row["after"] / row["before"] == pytest.approx(ratios[least], rel=1e-3)
    changes = found.needs()["change"].to_list()
    assert changes == sorted(changes)


def test_messages_lose_their_text_and_keep_what_the_template_adds():
    lens = answering("llama", "chatml")
    given = [*MESSAGES, {"role": "assistant", "content": "nobody."}]
    found = idl.answer(lens, given, bounded=0)
    assert set(found.needed["segment"]) == {"system", "user", "assistant", "question"}
    prompt = read_prompt(lens.tokenizer, read_chats(given)[0], 0)
    kept = [
        one for one, name in zip(prompt.ids, prompt.segments, strict=True) if name != "question"
    ]
    answer = lens.tokenizer("nobody.", add_special_tokens=False)["input_ids"]
    without = found.needed.filter(segment="question")["without"].to_list()
    assert without == pytest.approx(likely(lens, kept, answer), rel=1e-4)


def test_a_prompt_alone_has_nothing_to_take_out_and_says_how_to_name_parts():
    lens = idl.load("bundled-decoder")
    found = idl.answer(lens, {"prompt": "Snow fell on the", "answer": " harbour."}, bounded=0)
    # The last token stays.
    [row] = found.needs().iter_rows(named=True)
    answer = lens.tokenizer.encode(" harbour.", add_special_tokens=False)
    first, *_, last = lens.tokenizer.encode("Snow fell on the")
    assert row["without"] == pytest.approx(prod(likely(lens, [first, last], answer)), rel=1e-3)
    assert "measured in the model" in found.summary().text


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
