"""Answers: rows against the attention of generation, ends against programs, segments, templates, reports, refusals."""

import re
from collections import Counter
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import polars as pl
import pytest
import torch

import identilens as idl
from helpers.chats import MESSAGES, answering
from helpers.written import written
from identilens.errors import SettingError
from identilens.measures.attention import functional_interval
from identilens.models.chats import read_chats, read_prompt
from identilens.models.interface import AttentionCall
from identilens.models.reading import read_head
from identilens.studies.answer.result import LESS, MORE, OPEN, Answers
from identilens.studies.answer.rows import drawn_rows

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
            rows = found.table.filter(layer=layer, segment=segment)
            masses = rows["mass"].to_torch().view(weights.shape[0], len(answer))
            expected = weights[..., keys].sum(-1).double()
            torch.testing.assert_close(masses, expected, atol=1e-5, rtol=0)
    sinks = found.table.filter(segment="sink")
    assert len(sinks) == (len(found.table) // len({*own, "sink"}) if family == "gpt_oss" else 0)
    total = found.table.group_by("token", "layer", "head").agg(pl.col("mass").sum())["mass"]
    assert (total - 1).abs().max() < 1e-5


def test_only_the_rows_of_the_answer_are_computed_and_saved_on_request(tmp_path, monkeypatch):
    lens = answering("llama")
    found = idl.answer(lens, CHAT, max_new_tokens=5, bounded=0, matrices=True, out=tmp_path / "run")
    own = found.positions["segment"].to_list()
    assert found.tokens[0]["encoder"] == found.positions["token"].to_list()
    assert len(found.matrices) == 8
    for (layer, head), rows in found.table.group_by("layer", "head"):
        weights = found.matrices[f"text0.layer{layer}.head{head}.decoder.raw"].double()
        assert weights.shape == (5, len(own))
        for (segment,), masses in rows.group_by("segment"):
            keys = torch.tensor([one == segment for one in own])
            expected = weights[:, keys].sum(1)
            torch.testing.assert_close(masses["mass"].to_torch(), expected, atol=1e-6, rtol=0)
    [maps] = [one.maps for one in found.sections() if one.maps]
    assert {len(one.keys) for one in maps} == {len(own)}
    computed, attend = [], AttentionCall.attend

    def counted(call, rows=slice(None)):
        output, weights = attend(call, rows)
        computed.append(weights.shape[2])
        return output, weights

    # Capture is proven by now, which takes other rows.
    monkeypatch.setattr(AttentionCall, "attend", counted)
    again = idl.answer(lens, CHAT, max_new_tokens=5, bounded=0)
    assert computed == [5, 5]
    assert again.table.equals(found.table)
    assert not again.matrices


@pytest.mark.parametrize("family", ["llama", "gpt_oss", "gemma3"])
def test_ends_are_those_of_the_measure(family):
    lens = answering(family)
    found = idl.answer(lens, CHAT, max_new_tokens=4, bounded=3, tolerance=(0, "1%"))
    names, own = found.positions["token"], found.positions["segment"].to_list()
    ids = lens.tokenizer.convert_tokens_to_ids(names.to_list())
    [item] = lens.read([ids])
    first = len(ids) - 4
    assert len(found.intervals.unique(["token", "layer", "head"])) == 12
    for (layer, number), rows in found.intervals.group_by("layer", "head"):
        head = read_head(lens, item, layer, number)
        weights, T, visible = head.distributions(head.projected)
        for one in rows.iter_rows(named=True):
            query = first - 1 + one["token"]
            keys = torch.tensor([name == one["segment"] for name in own])
            if head.sink:
                keys = torch.cat([keys, torch.tensor([one["segment"] == "sink"])])
            seen = None if visible is None else visible[query]
            expected = functional_interval(
                weights[query],
                T,
                keys[None].double(),
                visible=seen,
                tolerance={"0": 0.0, "1%": 0.01}[one["tolerance"]],
            )
            values = torch.stack([expected.value, expected.lo, expected.hi])[:, 0]
            given = torch.tensor([one["mass"], one["lo"], one["hi"]]).double()
            torch.testing.assert_close(given, values, atol=1e-6, rtol=0)
    widths = found.intervals.group_by("tolerance").agg((pl.col("hi") - pl.col("lo")).mean())
    widths = dict(widths.iter_rows())
    assert 0.01 < widths["0"] < widths["1%"]


def only(whole, drawn, numbers=range(9)):
    """A result in which ends are known of drawn rows only."""
    rows = [(token, numbers[at], head) for at, own in drawn.items() for head, token in own]
    names = ["token", "layer", "head"]
    kept = pl.DataFrame(rows, dict.fromkeys(names, pl.Int64), orient="row")
    intervals = whole.intervals.join(kept, on=names, how="semi", maintain_order="left")
    return replace(whole, intervals=intervals)


def test_means_of_all_rows_are_means_of_ends_and_drawn_rows_estimate_them():
    lens = answering("llama")
    whole = idl.answer(lens, CHAT, max_new_tokens=6, tolerance=0)
    exact = whole.intervals.group_by("segment").agg(pl.col("mass", "lo", "hi").mean())
    both = whole.segments().join(exact, on="segment", suffix="_exact")
    for name in ("mass", "lo", "hi"):
        assert (both[name] - both[f"{name}_exact"]).abs().max() < 1e-12
    assert both.select(pl.max_horizontal("lo_error", "hi_error").max()).item() == 0.0
    said = whole.summary()
    assert (said.numbers["rows"], said.numbers["of_rows"]) == (48, 48)
    assert "estimated" not in said.text
    assert len(said.text.splitlines()) == 3
    assert said.numbers["certain_mass"] == pytest.approx(exact["lo"].sum())
    assert '"area"' in whole.charts()["layers"].to_json()
    heads = {0: range(4), 1: range(4)}
    part = idl.answer(lens, CHAT, max_new_tokens=6, bounded=3, tolerance=0, seed=5)
    drawn = drawn_rows(heads, 6, 3, 5, 0)
    assert only(whole, drawn).intervals.equals(part.intervals)
    assert re.search("At least .* % .estimated, standard error .* points. of", part.summary().text)
    inside = []
    for seed in range(60):
        few = only(whole, drawn_rows(heads, 6, 3, seed, 0)).segments()
        assert few["rows"].unique().to_list() == [18]
        both = few.join(exact, on="segment", suffix="_exact").filter(pl.col("lo_error") > 0)
        for end in ("lo", "hi"):
            inside += (
                (both[end] - both[f"{end}_exact"]).abs() < 2 * both[f"{end}_error"]
            ).to_list()
    assert sum(inside) > 0.93 * len(inside) > 300


class Dealt:
    """Random choices in a given sequence, as numbers of permutations."""

    def __init__(self, choices):
        self.choices = iter(choices)

    def permutation(self, things):
        found = list(permutations(things))
        return np.array(found[next(self.choices) % len(found)])

    def integers(self, most):
        return next(self.choices) % most


@pytest.mark.parametrize("own", [(2, 2), (2, 1)])
def test_estimates_are_right_in_the_mean_of_all_draws(monkeypatch, own):
    """Two tokens by layers of so many heads: every draw of one and two rows for each token, all equally likely."""
    values = torch.rand(2, 2, 2, 2, generator=torch.Generator().manual_seed(3)).double() / 8
    at = [
        (token, layer, head) for token in (0, 1) for layer in (0, 1) for head in range(own[layer])
    ]
    rows = [
        (0, *one, "a", mass, "0", mass - by, mass + by)
        for one in at
        for mass, by in [(0.25 + values[one][0].item(), values[one].mean().item())]
    ]
    names = ["text", "token", "layer", "head", "segment", "mass", "tolerance", "lo", "hi"]
    known = [dict(zip(names, one, strict=True)) for one in rows]
    whole = written(Answers, table=known, intervals=known, positions=[])
    [exact] = whole.segments().rows(named=True)
    heads = {number: range(most) for number, most in enumerate(own)}
    for count in (1, 2):
        found, seen = [], Counter()
        for choices in product(range(2), range(own[1]), range(2), range(2), range(3)):
            monkeypatch.setattr(np.random, "default_rng", lambda _, dealt=choices: Dealt(dealt))
            drawn = drawn_rows(heads, 2, count, 0, 0)
            seen.update((number, row) for number, own_rows in drawn.items() for row in own_rows)
            found.append(only(whole, drawn).segments().row(0, named=True))
        for end in ("lo", "hi"):
            mean = sum(one[end] for one in found) / len(found)
            assert mean == pytest.approx(exact[end], abs=1e-12)
        assert len({*seen.values()}) == 1
        assert len(seen) == len(at)
        assert {one["lo_error"] for one in found} == {None} or count == 2


def test_layers_take_turns_and_no_row_is_drawn_twice():
    for count in (1, 2, 3, 8, 20):
        drawn = drawn_rows({0: [0, 2], 4: [1, 3], 6: [0, 1]}, 7, count, 2, 1)
        rows = [(number, *row) for number, own in drawn.items() for row in own]
        assert len(rows) == len({*rows}) == 7 * min(count, 6)
        of_layers = [len(own) for own in drawn.values()]
        assert max(of_layers) - min(of_layers) <= 1
        assert {*Counter(token for *_, token in rows).values()} == {min(count, 6)}


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
    assert also.intervals.equals(given.intervals)


def test_an_answer_of_one_token_and_a_stop_token():
    lens = answering("llama")
    one = idl.answer(lens, CHAT, max_new_tokens=1, bounded=1)
    assert "(estimated, from 1 row)" in one.summary().text
    assert one.table["token"].unique().to_list() == [0]
    so_far = one.table.filter(segment="answer so far")["mass"]
    assert (so_far == 0).all()
    first = one.positions["token"][-1]
    # Whatever the model says first is its stop token now.
    lens.model.generation_config.eos_token_id = lens.tokenizer.convert_tokens_to_ids(first)
    stopped = idl.answer(lens, CHAT, max_new_tokens=9, bounded=0)
    assert stopped.positions.filter(pl.col("answer").is_not_null())["token"].to_list() == [first]


def test_what_is_drawn_with_a_temperature_follows_the_seed_and_leaves_other_draws_alone():
    lens = answering("gpt2")
    run = {"max_new_tokens": 12, "bounded": 0, "temperature": 1.5, "top_k": 20}
    torch.manual_seed(3)
    before = torch.rand(3)
    torch.manual_seed(3)
    answers = [idl.answer(lens, PROMPT, seed=seed, **run).positions["token"] for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), before)
    assert answers[0].equals(answers[1])
    assert not answers[0].equals(answers[2])
    with pytest.raises(SettingError, match="top_k"):
        idl.answer(lens, PROMPT, top_k=3)


def test_greedy_tokens_are_the_most_likely_and_the_rest_is_said():
    lens = answering("llama")
    greedy = idl.answer(lens, PROMPT, max_new_tokens=5, bounded=0)
    assert greedy.positions["rank"].drop_nulls().to_list() == [1] * 5
    other = idl.answer(lens, {"prompt": PROMPT, "answer": "qqqq"}, bounded=0)
    assert (other.positions["rank"].drop_nulls() > 1).any()
    ids = lens.tokenizer(PROMPT)["input_ids"] + lens.tokenizer.convert_tokens_to_ids(["q"] * 4)
    likely = lens.model(torch.tensor([ids])).logits[0, -5:-1].softmax(-1)
    chosen = likely[:, ids[-1]].double()
    torch.testing.assert_close(
        other.positions["probability"].drop_nulls().to_torch(), chosen, atol=1e-6, rtol=1e-4
    )


def test_a_difference_is_certain_where_ranges_overlap():
    """Its ends are those of the functional with 1 on one segment and −1 on the other, in the rows and in the mean."""
    lens = answering("llama")
    found = idl.answer(lens, CHAT, max_new_tokens=3, tolerance=(0, "1%"))
    own = found.positions["segment"].to_list()
    others = {name: {*own} - {name} for name in ("where", "who")}
    pairs = {(one, other) for one, every in others.items() for other in every}
    assert set(found.differences.select("segment", "other").iter_rows()) == pairs
    ids = lens.tokenizer.convert_tokens_to_ids(found.positions["token"].to_list())
    [item] = lens.read([ids])
    for (layer, number, one, other), rows in found.differences.filter(tolerance="0").group_by(
        "layer", "head", "segment", "other"
    ):
        head = read_head(lens, item, layer, number)
        costs = torch.tensor([[float(name == one) - float(name == other) for name in own]])
        for row in rows.iter_rows(named=True):
            query = len(ids) - 4 + row["token"]
            seen = head.seen(query)
            expected = functional_interval(
                head.row(query), head.projected, costs.double(), visible=seen
            )
            values = [float(part) for part in (expected.value, expected.lo, expected.hi)]
            assert [row[name] for name in ("mass", "lo", "hi")] == pytest.approx(values, abs=1e-6)
    pair = ["segment", "other", "tolerance"]
    exact = found.differences.group_by(pair).agg(pl.col("mass", "lo", "hi").mean())
    both = found.order().join(exact, on=pair, suffix="_exact")
    assert len(both) == len(exact) == 2 * len(pairs)
    for name in ("mass", "lo", "hi"):
        assert (both[f"{name}_exact"] - both[name]).abs().max() < 1e-12
    for row in both.iter_rows(named=True):
        sign = MORE if row["lo"] > 0 else LESS if row["hi"] < 0 else OPEN
        assert row["verdict"] == sign
    # Not looser than what the ends of both segments tell.
    both, means = both.filter(segment="where"), found.segments()
    ends = both.join(
        means, left_on=["other", "tolerance"], right_on=["segment", "tolerance"], suffix="_other"
    )
    least = means.filter(segment="where").select("tolerance", least="lo")
    ends = ends.join(least, on="tolerance")
    assert (ends["lo"] >= ends["least"] - ends["hi_other"] - 1e-9).all()
    assert (ends["lo"] > ends["least"] - ends["hi_other"] + 1e-3).any()


def test_of_many_named_segments_no_differences_are_bounded():
    named = {name: [3 * at, 3 * at + 2] for at, name in enumerate("abcd")}
    found = idl.answer(
        answering("llama"), {"prompt": PROMPT, "segments": named}, max_new_tokens=2, bounded=2
    )
    assert found.differences.is_empty()
    assert found.order().is_empty()
    assert "Compared with" not in found.summary().text
