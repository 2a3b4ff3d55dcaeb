"""Answers: rows against the attention of generation, ends against programs, segments, templates, reports, refusals."""

from dataclasses import replace
from itertools import combinations

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.chats import MESSAGES, answering
from helpers.heads import doubles, seeded
from identilens.measures.attention import functional_interval
from identilens.models.chats import read_chats, read_prompt
from identilens.models.interface import AttentionCall
from identilens.models.reading import read_head
from identilens.studies.drawn import ABOVE, BELOW, OPEN, drawn_rows, mean_of_rows

PROMPT = "snow fell on the harbour, and nobody came."
CHAT = {"prompt": PROMPT, "segments": {"where": "the harbour", "who": [31, 37]}}


def generated_attention(lens, ids, tokens):
    """The weights of each generated token as ``generate`` reports them for eager attention, by layer."""
    lens.model.set_attn_implementation("eager")
    given = torch.tensor([ids])
    output = lens.model.generate(
        given,
        attention_mask=torch.ones_like(given),
        max_new_tokens=tokens,
        do_sample=False,
        output_attentions=True,
        return_dict_in_generate=True,
        disable_compile=True,
    )
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
        head = read_head(lens, item, layer, number)
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


def only(whole, seed, count):
    """A result of four heads in two layers in which ends are known of so many drawn rows of each layer."""
    queries = whole.table["query"].unique().sort()
    tokens = len(queries)
    kept = [
        {"layer": layer, "head": row // tokens, "query": queries[row % tokens], "drawn": True}
        for layer in (0, 1)
        for row in drawn_rows(seed, 0, layer, "decoder", 4 * tokens, count)
    ]
    joined = whole.table.join(
        pl.DataFrame(kept), on=["layer", "head", "query"], how="left", maintain_order="left"
    )
    known = pl.col("tolerance").is_null() | pl.col("drawn")
    return replace(whole, table=joined.filter(known).drop("drawn"))


def test_means_of_all_rows_are_means_of_ends_and_drawn_rows_estimate_them():
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
    assert ", by 48 of 48 rows" in said.text
    assert len(said.text.splitlines()) <= 3
    part = idl.answer(lens, CHAT, max_new_tokens=6, bounded=9, tolerance=0, seed=5)
    assert only(whole, 5, 9).table.equals(part.table)
    assert ", by 18 of 48 rows." in part.summary().text
    inside = []
    for seed in range(60):
        few = only(whole, seed, 9).segments()
        assert few["rows"].unique().to_list() == [18]
        both = few.join(exact, on="segment", suffix="_exact").filter(pl.col("lo_error") > 0)
        for end in ("lo", "hi"):
            inside += (
                (both[end] - both[f"{end}_exact"]).abs() < 2 * both[f"{end}_error"]
            ).to_list()
    assert sum(inside) > 0.93 * len(inside) > 300


def test_estimates_are_right_in_the_mean_of_all_draws():
    """Two of four rows: every draw, all equally likely."""
    values = torch.rand(4, 3, generator=seeded(3)).double().tolist()
    rows = [
        {
            "text": 0,
            "layer": 0,
            "head": 0,
            "kind": "decoder",
            "query": row,
            "functional": "a",
            "tolerance": "0",
            "value": value,
        }
        | {"lo": value - below / 8, "hi": value + above / 8}
        for row, (value, below, above) in enumerate(values)
    ]
    whole, found = pl.DataFrame(rows), []
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
    assert ", by 2 of 8 rows." in one.summary().text
    assert one.table["query"].n_unique() == 1
    so_far = one.table.filter(functional="answer so far")["value"]
    assert (so_far == 0).all()
    first = one.positions["token"][-1]
    # Whatever the model says first is its stop token now.
    lens.model.generation_config.eos_token_id = lens.tokenizer.convert_tokens_to_ids(first)
    stopped = idl.answer(lens, CHAT, max_new_tokens=9, bounded=0)
    assert stopped.positions.filter(pl.col("answer").is_not_null())["token"].to_list() == [first]


def test_greedy_tokens_are_the_most_likely_and_the_rest_is_said():
    lens = answering("llama")
    greedy = idl.answer(lens, PROMPT, max_new_tokens=5, bounded=0)
    assert greedy.positions["rank"].drop_nulls().to_list() == [1] * 5
    other = idl.answer(lens, {"prompt": PROMPT, "answer": "qqqq"}, bounded=0)
    assert (other.positions["rank"].drop_nulls() > 1).any()
    ids = lens.tokenizer(PROMPT)["input_ids"] + lens.tokenizer.convert_tokens_to_ids(["q"] * 4)
    likely = lens.model(torch.tensor([ids])).logits[0, -5:-1].softmax(-1)
    chosen = likely[:, ids[-1]].double()
    assert_close(
        other.positions["probability"].drop_nulls().to_torch(), chosen, atol=1e-6, rtol=1e-4
    )


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
