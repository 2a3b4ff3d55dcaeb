"""Answers: rows against the attention of generation, ends against programs, segments, templates, reports, refusals."""

from itertools import combinations
from math import prod

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.charts import leaves
from helpers.chats import MESSAGES, answering, greedy, log_probabilities
from helpers.heads import doubles, seeded
from helpers.written import answered
from identilens.errors import InputError
from identilens.measures.attention import functional_interval
from identilens.models.chats import read_chats, read_prompt
from identilens.models.interface import AttentionCall
from identilens.studies.drawn import ABOVE, BELOW, OPEN, drawn_rows, mean_of_rows

PROMPT = "snow fell on the harbour, and nobody came."
CHAT = {"prompt": PROMPT, "segments": {"where": "the harbour", "who": [31, 37]}}


def generated_attention(lens, ids, tokens):
    """The weights of each generated token as ``generate`` reports them for eager attention, by layer."""
    lens.model.set_attn_implementation("eager")
    options = {"return_dict_in_generate": True, "disable_compile": True}
    output = greedy(lens, ids, tokens, output_attentions=True, **options)
    answer, rows = output.sequences[0, len(ids) :].tolist(), []
    keys = len(ids) + len(answer)
    for layer in range(len(output.attentions[0])):
        steps = [step[layer][0, :, -1] for step in output.attentions]
        # A sliding cache forgets the first keys, which these rows do not see.
        full = torch.zeros(steps[0].shape[0], len(answer), keys)
        for token, weights in enumerate(steps):
            end = len(ids) + token
            width = min(weights.shape[-1], end)
            full[:, token, end - width : end] = weights[:, weights.shape[-1] - width :]
        rows.append(full)
    return answer, rows


FAMILIES = [
    "llama",
    "qwen3",
    "gemma3",
    "gpt2",
    "gpt_oss",
    "gpt_neox",
    "deepseek_v3",
    "jamba",
    "gemma2",
    "afmoe",
]


@pytest.mark.parametrize("family", [*FAMILIES, "bundled-decoder"])
def test_rows_are_those_of_generation(family):
    lens = idl.load(family) if family == "bundled-decoder" else answering(family)
    prompt = read_prompt(lens.tokenizer, read_chats(CHAT)[0], 0)
    found = idl.answer(lens, CHAT, max_new_tokens=7, bounded=0)
    answer, layers = generated_attention(lens, prompt.ids, 7)
    asked = found.positions.filter(pl.col("answer").is_not_null())
    assert asked["token"].to_list() == list(lens.reader.names(answer))
    own = found.positions["segment"].to_list()
    numbers = found.table["layer"].unique(maintain_order=True).to_list()
    assert len(numbers) == len(layers)
    for layer, weights in zip(numbers, layers, strict=True):
        for segment in dict.fromkeys(own):
            keys = torch.tensor([one == segment for one in own])
            rows = found.table.filter(layer=layer, functional=segment)
            masses = rows["value"].to_torch().view(weights.shape[0], len(answer))
            expected = weights[..., keys].sum(-1).double()
            assert_close(masses, expected, atol=1e-5, rtol=0)
    segments = found.table.filter(pl.col("functional").is_in({*own, "sink"}))
    sinks = segments.filter(functional="sink")
    assert len(sinks) == (len(segments) // len({*own, "sink"}) if family == "gpt_oss" else 0)
    total = segments.group_by("query", "layer", "head").agg(pl.col("value").sum())["value"]
    assert (total - 1).abs().max() < 1e-5


def test_only_the_rows_of_the_answer_are_computed(monkeypatch):
    lens = answering("llama")
    found = idl.answer(lens, CHAT, max_new_tokens=5, bounded=0)
    computed, attend = [], AttentionCall.attend

    def counted(call):
        output, weights = attend(call)
        computed.append(weights.shape[2])
        return output, weights

    # Capture is proven by now, which takes other rows.
    monkeypatch.setattr(AttentionCall, "attend", counted)
    again = idl.answer(lens, CHAT, max_new_tokens=5, bounded=0)
    assert computed == [5, 5]
    assert again.table.equals(found.table)


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3"])
def test_ends_are_those_of_the_measure(family):
    lens = answering(family)
    found = idl.answer(lens, CHAT, max_new_tokens=4, bounded=3, tolerance=(0, "1%"))
    own = found.positions["segment"].to_list()
    ids = lens.tokenizer.convert_tokens_to_ids(found.positions["token"].to_list())
    [item] = lens.read([ids])
    drawn = found.table.drop_nulls("lo")
    assert len(drawn.unique(["query", "layer", "head"])) == 6
    assert {"where − who", "who − template"} < {*drawn["functional"]}
    for (layer, number), rows in drawn.group_by("layer", "head"):
        head = lens.layer(item, layer).head(number)
        weights, T, visible = head.distributions(head.projected)
        for one in rows.iter_rows(named=True):
            query = one["query"]
            first_name, _, other = one["functional"].partition(" − ")
            keys = [(name == first_name) - (name == other) for name in own]
            keys += [(first_name == "sink") - (other == "sink")] * head.sink
            seen = None if visible is None else visible[query]
            expected = functional_interval(
                weights[query],
                T,
                doubles([keys]),
                visible=seen,
                tolerance={"0": 0.0, "1%": 0.01}[one["tolerance"]],
            )
            values = torch.stack([expected.value, expected.lo, expected.hi])[:, 0]
            given = torch.tensor([one["value"], one["lo"], one["hi"]]).double()
            assert_close(given, values, atol=1e-6, rtol=0)
    widths = drawn.group_by("tolerance").agg((pl.col("hi") - pl.col("lo")).mean())
    widths = dict(widths.iter_rows())
    assert 0.01 < widths["0"] < widths["1%"]


def test_means_of_all_rows_are_means_of_ends():
    lens = answering("llama")
    whole = idl.answer(lens, CHAT, max_new_tokens=6, tolerance=0, bounded=99)
    names = {"functional": "segment"}
    drawn = whole.table.drop_nulls("lo").group_by("functional")
    exact = drawn.agg(pl.col("value", "lo", "hi").mean()).rename(names)
    both = whole.segments().join(exact, on="segment", suffix="_exact")
    for name in ("value", "lo", "hi"):
        assert (both[name] - both[f"{name}_exact"]).abs().max() < 1e-12
    assert both.select(pl.max_horizontal("lo_error", "hi_error").max()).item() == 0.0
    said = whole.summary()
    assert (said.numbers["rows"], said.numbers["population"]) == (48, 48)
    assert said.text.endswith(", proven.")
    assert len(said.text.splitlines()) <= 3


def test_estimates_are_right_in_the_mean_of_all_draws():
    """Two of four rows: every draw, all equally likely."""
    values = torch.rand(4, 3, generator=seeded(3)).double().tolist()
    rows = [
        {"query": row, "value": value, "lo": value - below / 8, "hi": value + above / 8}
        for row, (value, below, above) in enumerate(values)
    ]
    place = {"text": 0, "layer": 0, "head": 0, "kind": "decoder", "functional": "a"}
    whole = pl.DataFrame([{**place, **row, "tolerance": "0"} for row in rows])
    found = []
    [exact] = mean_of_rows(whole, []).to_dicts()
    for drawn in combinations(range(4), 2):
        known = pl.col("query").is_in(drawn)
        ends = [pl.when(known).then(pl.col(name)).alias(name) for name in ("tolerance", "lo", "hi")]
        found += mean_of_rows(whole.with_columns(ends), []).to_dicts()
    assert {(one["rows"], one["population"], one["lo_error"]) for one in found} == {(2, 4, None)}
    for end in ("value", "lo", "hi"):
        mean = sum(one[end] for one in found) / len(found)
        assert mean == pytest.approx(exact[end], abs=1e-12)


def test_no_row_is_drawn_twice_and_the_draw_rests_on_the_place():
    for count in (0, 1, 5, 8, 20):
        drawn = drawn_rows(2, 1, 3, "decoder", 8, count)
        assert drawn == sorted({*drawn})
        assert len(drawn) == min(count, 8)
    assert drawn_rows(2, 1, 3, "decoder", 999, 5) == drawn_rows(2, 1, 3, "decoder", 999, 5)
    assert drawn_rows(2, 1, 3, "decoder", 999, 5) != drawn_rows(2, 1, 4, "decoder", 999, 5)


def test_repeated_roles_are_numbered_and_a_last_answer_is_given():
    messages = [*MESSAGES, {"role": "assistant", "content": "nobody."}]
    lens = answering("llama", "chatml")
    twice = [{"role": "user", "content": "a"}, *MESSAGES[1:]]
    assert {"user 1", "user 2"} < set(read_prompt(lens.tokenizer, read_chats(twice)[0], 0).segments)
    given = idl.answer(lens, messages, bounded=1)
    answered = given.positions.filter(pl.col("answer").is_not_null())
    assert "".join(answered["token"]) == "nobody."
    also = idl.answer(lens, {"messages": MESSAGES, "answer": "nobody."}, bounded=1)
    assert also.table.equals(given.table)


def test_an_answer_of_one_token_and_a_stop_token():
    lens = answering("llama")
    one = idl.answer(lens, CHAT, max_new_tokens=1, bounded=1)
    assert ", estimated from 2 of 8 rows." in one.summary().text
    assert one.table["query"].n_unique() == 1
    so_far = one.table.filter(functional="answer so far")["value"]
    assert (so_far == 0).all()
    first = one.positions["token"][-1]
    # Whatever the model says first is its stop token now.
    lens.model.generation_config.eos_token_id = lens.tokenizer.convert_tokens_to_ids(first)
    stopped = idl.answer(lens, CHAT, max_new_tokens=9, bounded=0)
    assert stopped.positions.filter(pl.col("answer").is_not_null())["token"].to_list() == [first]


def test_a_difference_is_certain_where_ranges_overlap():
    """Its mean over all rows is certain where those of both segments overlap."""
    lens = answering("llama")
    found = idl.answer(lens, CHAT, max_new_tokens=3, tolerance=(0, "1%"), bounded=99)
    own = found.positions["segment"].to_list()
    pairs = {
        f"{one} − {other}": (one, other) for one in ("where", "who") for other in {*own} - {one}
    }
    differences = found.table.filter(~pl.col("functional").is_in(own))
    assert {*differences["functional"]} == {*pairs}
    pair = ["functional", "tolerance"]
    exact = differences.drop_nulls("lo").group_by(pair).agg(pl.col("value", "lo", "hi").mean())
    both = found.order().join(exact, on=pair, suffix="_exact")
    assert len(both) == len(exact) == 2 * len(pairs)
    for name in ("value", "lo", "hi"):
        assert (both[f"{name}_exact"] - both[name]).abs().max() < 1e-12
    for row in both.iter_rows(named=True):
        sign = ABOVE if row["lo"] > 0 else BELOW if row["hi"] < 0 else OPEN
        assert row["verdict"] == sign
    # Not looser than what the ends of both segments tell.
    means = {row["segment"]: row for row in found.segments().filter(tolerance="0").to_dicts()}
    ends = [
        (row["lo"], means[one]["lo"] - means[other]["hi"])
        for row in both.filter(tolerance="0").to_dicts()
        for one, other in [pairs[row["functional"]]]
    ]
    assert all(lo >= least - 1e-9 for lo, least in ends)
    assert any(lo > least + 1e-3 for lo, least in ends)


def test_many_named_segments_are_not_compared():
    named = {name: [3 * at, 3 * at + 2] for at, name in enumerate("abcd")}
    found = idl.answer(
        answering("llama"), {"prompt": PROMPT, "segments": named}, max_new_tokens=2, bounded=2
    )
    assert {*found.table["functional"]} == {*found.positions["segment"]}
    assert found.order().is_empty()
    assert "above 0" not in found.summary().text


def likely(lens, ids, answer):
    """The probability of each token of an answer, by one plain run."""
    return log_probabilities(lens, ids, answer).exp().tolist()


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_oss", "bundled-decoder"])
def test_it_is_that_of_a_plain_run_without_the_segment(family):
    lens = idl.load(family) if family == "bundled-decoder" else answering(family)
    prompt = read_prompt(lens.tokenizer, read_chats(CHAT)[0], 0)
    found = idl.answer(lens, CHAT, max_new_tokens=5, bounded=0)
    own = found.positions.drop_nulls("answer")
    answer = greedy(lens, prompt.ids, 5)[0, len(prompt.ids) :].tolist()
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


def test_a_segment_of_the_answer_is_taken_out_of_it():
    lens = idl.load("bundled-decoder")
    chat = {
        "prompt": "Snow fell on the harbour.",
        "answer": " Nobody came. The ferry left.",
        "segments": {"first": "Nobody came."},
    }
    found = idl.answer(lens, chat, bounded=4, tolerance=0)
    answer = found.positions.drop_nulls("answer")
    own = answer["segment"] == "first"
    ids = (
        lens.tokenizer.encode(chat["prompt"]),
        lens.tokenizer.encode(chat["answer"], add_special_tokens=False),
    )
    rest = [one for one, taken in zip(ids[1], own, strict=True) if not taken]
    left = found.needed.filter(segment="first")
    assert left["token"].to_list() == answer.filter(~own)["answer"].to_list()
    assert left["without"].to_list() == pytest.approx(likely(lens, ids[0], rest), rel=1e-4)
    assert (
        "the rest of the answer" in found.summary().text or found.needs()["segment"][0] != "first"
    )
    assert "first" in found.segments()["segment"]
    with pytest.raises(InputError, match="segment 'first'.*its words occur 0 times"):
        idl.answer(lens, chat | {"segments": {"first": "Somebody"}})


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


@pytest.mark.parametrize("bounded", [0, 2])
def test_a_segment_has_one_colour_in_the_marked_answer_and_the_charts(bounded):
    found = answered(bounded=bounded)
    marks = [mark for line in found.token_lines() for mark, _ in line.legend]
    colours = {mark.label: mark.series for mark in marks if mark.series is not None}
    assert colours.keys() == {"document", "question"}
    for chart in found.charts().values():
        for leaf in leaves(chart.to_dict()):
            order = leaf["encoding"]["color"]["scale"]["domain"]
            assert {segment: order.index(segment) for segment in colours} == colours


def test_a_conversation_is_filled_where_the_answer_needs_it():
    prompt, *_ = answered().token_lines()
    marks = {mark.label: mark for mark, _ in prompt.legend}
    assert {name: mark.strong for name, mark in marks.items()} == {
        "document": True,
        "question": False,
    }
    assert [one.mark.label for one in prompt.tokens] == ["template", "question", "document"]
