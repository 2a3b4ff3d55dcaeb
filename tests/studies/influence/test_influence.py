"""Heads and keys that are removed from a model, beside plain runs with hooks of the model's own modules."""

from functools import partial

import pytest
import torch
from torch.nn.functional import kl_div

import identilens as idl
from helpers.chats import log_probabilities
from helpers.zoo import build, example, ids, tiny_decoder
from identilens.errors import SettingError
from identilens.models.later import LaterLayers
from identilens.models.outcome import Answer
from identilens.models.substitution import Rows

TEXT = ids(9)
D_V = 4


@pytest.fixture(scope="module")
def lens():
    return tiny_decoder(2)


@torch.no_grad()
def plain(model, layer, head, mean):
    """Return the model's output without a head: its part of what enters the output projection is replaced."""

    def without(_, inputs):
        mixed = inputs[0].clone()
        part = mixed[..., head * D_V : (head + 1) * D_V]
        part[:] = part.mean(1, keepdim=True) if mean else 0
        return (mixed,)

    with model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(without):
        return model(torch.tensor([TEXT]), output_hidden_states=True)


@pytest.mark.parametrize("mean", [False, True])
@pytest.mark.parametrize("outcome", ["prediction", "states"])
def test_effects_are_those_of_a_plain_hook(lens, outcome, mean):
    found = idl.influence(lens, [TEXT], outcome=outcome)
    with torch.no_grad():
        own = lens.model(torch.tensor([TEXT]), output_hidden_states=True)
    for row in found.table.iter_rows(named=True):
        after = plain(lens.model, row["layer"], row["head"], mean)
        if outcome == "prediction":
            p, q = own.logits[0].log_softmax(-1), after.logits[0].log_softmax(-1)
            expected = float(kl_div(q, p, log_target=True, reduction="sum")) / len(TEXT)
        else:
            before, moved = own.hidden_states[-1], after.hidden_states[-1]
            expected = float((moved - before).norm() / before.norm())
        assert expected > 1e-6
        assert row["effect_of_mean" if mean else "effect"] == pytest.approx(expected, rel=1e-6)


def test_a_hidden_key_leaves_the_other_weights_scaled_up(lens):
    found = idl.influence(lens, [TEXT], layers=1, heads=1, queries=("last", 0), directions=0)
    item = lens.read([TEXT])[0]
    head, answer = lens.layer(item, 1).head(1), Answer(lens, item, "prediction")
    last = found.hidden_keys.filter(query=8)
    assert last["key"].to_list() == list(range(9))
    for row in last.iter_rows(named=True):
        others = head.attention[8].clone()
        others[row["key"]] = 0.0
        rows = Rows([8], others[None] / others.sum())
        assert row["weight"] == pytest.approx(float(head.attention[8, row["key"]]))
        assert row["effect"] == pytest.approx(answer.change(8, {head.address: rows}) / 9, rel=1e-9)
    [alone] = found.hidden_keys.filter(query=0).iter_rows(named=True)
    assert (alone["weight"], alone["effect"]) == (1.0, None)
    assert found.table["estimate"].null_count() == 1


@pytest.mark.parametrize("words", ["saw the ferry", " in"])
def test_of_an_answer_the_change_of_its_log_probability_has_a_sign(words):
    """Against plain runs with the head's part of the output projection's input set to 0."""
    lens, text = idl.load("bundled-decoder"), "The ferry left before dawn. Nobody"
    given = lens.tokenizer.encode(text)
    log = partial(log_probabilities, lens, given)
    made = (words, f" {words.strip()}")
    ways = [lens.tokenizer.encode(one, add_special_tokens=False) for one in made]
    answer = max(ways, key=lambda ids: log(ids).sum())
    found = idl.influence(lens, [text], decision=words, layers=[0, 3], heads=[1, 4], directions=0)
    for layer, head, change in found.table.select("layer", "head", "log_change").iter_rows():

        def remove(_, inputs, head=head):
            one = inputs[0].clone()
            one[..., 32 * head : 32 * head + 32] = 0
            return (one,)

        projection = lens.model.model.layers[layer].self_attn.o_proj
        with projection.register_forward_pre_hook(remove):
            without = log(answer)
        expected = without - log(answer)
        assert change == pytest.approx(expected.sum().item(), abs=1e-4)
        own = found.answer_tokens.filter(layer=layer, head=head)
        assert own["log_change"].to_list() == pytest.approx(expected.tolist(), abs=1e-4)
        assert own["log_probability"].to_list() == pytest.approx(log(answer).tolist(), abs=1e-4)
        assert own["token"].to_list() == list(lens.reader.names(answer))
        assert own["query"].to_list() == [len(given) - 1 + at for at in range(len(answer))]
        assert own["query_token"].to_list() == list(lens.reader.names([given[-1], *answer[:-1]]))
    heads = found.heads().sort("log_change")
    least, most = heads.row(0, named=True), heads.row(-1, named=True)
    numbers = found.summary().numbers
    assert numbers["log_probability"] == pytest.approx(log(answer).sum().item(), abs=1e-4)
    assert (numbers["answer_layer"], numbers["answer_head"]) == (least["layer"], least["head"])
    assert numbers["log_change"] == least["log_change"] <= most["log_change"]
    assert found.summary().headline[0][0] == f"{least['log_change']:+.3g}"


def test_keys_of_rows_of_an_answer_are_hidden_too():
    """A row of the answer, which the texts alone do not have, against the model with the row put into it."""
    lens = idl.load("bundled-decoder")
    found = idl.influence(
        lens, ["The ferry left", "Nobody"], decision="the sea", layers=1, heads=2, queries="the", directions=0
    )  # fmt: skip
    keys = found.hidden_keys
    assert keys["text"].unique().to_list() == [0, 1]
    assert keys["query_token"].unique().to_list() == [" the"]
    assert found.summary().numbers["texts"] == 2
    assert found.keys_by_effect()["log_change"].is_sorted()

    given = lens.tokenizer.encode("Nobody the sea")
    item, last = lens.read([given])[0], len(given) - 1
    head, query = lens.layer(item, 1).head(2), last - 1
    for key, change in keys.filter(text=1).select("key", "log_change").iter_rows():
        others = head.attention[query].index_fill(0, torch.tensor([key]), 0.0)
        rows = {head.address: Rows([query], others[None] / others.sum())}
        pair = Answer(lens, item, "prediction").replaced(query, rows)
        after, own = (entries[-3:-1].double().log_softmax(-1) for entries in pair)
        assert change == pytest.approx((after - own)[[0, 1], given[-2:]].sum().item(), abs=1e-4)


def test_heads_of_a_model_of_images_are_removed():
    found = idl.influence(idl.Lens(build("vit")), example("vit"), outcome="states", directions=0)
    assert found.table["effect"].min() > 1e-6


def test_of_many_heads_those_of_the_largest_estimates_are_removed(lens):
    every = idl.influence(lens, [TEXT])
    few = idl.influence(lens, [TEXT], removed=3)
    assert few.table["estimate"].to_list() == every.table["estimate"].to_list()
    kept = few.table.drop_nulls("effect").sort("estimate", descending=True)
    largest = every.table.sort("estimate", descending=True).head(3)
    assert kept["effect"].to_list() == pytest.approx(largest["effect"].to_list(), rel=1e-9)
    assert "an estimate to first order alone: 1 head." in few.summary().text
    with pytest.raises(SettingError, match="directions above 0"):
        idl.influence(lens, [TEXT], removed=3, directions=0)


def test_an_answer_follows_texts_of_models_that_predict_the_next_token(lens):
    decoder = idl.load("bundled-decoder")
    for model, options in (
        (idl.load("bundled"), {}),
        (decoder, {"answer": ["last"]}),
        (decoder, {"outcome": "states"}),
    ):
        with pytest.raises(SettingError, match="expected decision"):
            idl.influence(model, "Snow fell.", decision="soon", **options)


@pytest.mark.parametrize("outcome", ["prediction", "states"])
def test_a_head_that_is_left_as_it_is_changes_nothing_in_half_precision(outcome, monkeypatch):
    """Eager attention alone would change a model in bfloat16 that runs another one."""
    half = idl.load("bundled-decoder", dtype="bfloat16")
    answer = Answer(half, half.read([TEXT])[0], outcome)
    changed = LaterLayers.changed

    def unchanged(later, number, _change, copies):
        return changed(later, number, lambda *_: None, copies)

    monkeypatch.setattr(LaterLayers, "changed", unchanged)
    assert max(answer.between(*pair).max() for pair in answer.without(1, [0, 1, 2])) < 1e-9
