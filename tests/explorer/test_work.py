"""What the explorer computes, beside plain runs of a tiny decoder."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.heads import doubles
from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.explorer import work
from identilens.explorer.work import (
    alternative,
    broken_row,
    changed,
    given_up,
    measured,
    most_tokens,
    moved_row,
    proven_row,
    same_answer,
    without_head,
)
from identilens.studies.head_views import size_in_words
from identilens.studies.outcomes import changed as changed_words

TEXT = ids(14)


def nothing():
    pass


@pytest.fixture(scope="module")
def told():
    return []


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("gpt2").double())


@pytest.fixture(scope="module")
def at(lens, told):
    return measured(lens, TEXT, nothing, told.append)


def test_a_study_tells_its_progress_and_is_stopped():
    heard, stopped = [], []
    progress = given_up(lambda: stopped.append(1), heard.append)
    progress(1, 4, "a")
    progress(0, 0, "b")
    assert heard == [{"progress": 0.25, "note": "a"}, {"progress": 0.0, "note": "b"}]
    assert len(stopped) == 2


def test_each_layer_is_told_as_it_comes(at, told, lens):
    assert told[0] == {"tokens": list(map(str, TEXT)), "most": 128}
    assert (most_tokens(lens), len(at.answer.unchanged)) == (128, 1)
    assert [(step["layer"], step["layers"]) for step in told[1:]] == [(1, 2), (2, 2)]
    maps = told[1]["viewer"]["maps"]
    assert [one["choices"] for one in maps] == [
        {"kind": "decoder", "layer": 0, "head": head} for head in range(4)
    ]
    assert maps[0]["note"] == size_in_words(14, 14, 8, 8, 6)
    assert list(maps[0]["layers"]) == ["raw", "effective"]
    assert maps[0]["differences"] == {"null": ("raw", "effective")}
    plain = next(iter(lens.capture([TEXT], weights=True)))
    for one in plain.heads:
        held = at.head(one.layer, one.head, "decoder")
        assert_close(held.weights, one.weights)


@pytest.mark.parametrize(
    ("outcome", "tolerance"),
    [("head", "1%"), ("layer", "1%"), ("answer", "1%"), ("answer", "2nats")],
)
def test_a_row_is_proven_by_what_must_stay(at, lens, outcome, tolerance):
    found = proven_row(at, at.head(1, 2, "decoder"), 13, outcome, tolerance)
    stays = "prediction" if outcome == "answer" else outcome
    options = {"layers": 1, "heads": 2, "queries": 13, "outcome": stays, "tolerance": tolerance}
    study = idl.certify(lens, [TEXT], **options).table
    for name in ("value", "lo", "hi", "norm_share"):
        assert found[name] == pytest.approx(study[name].to_list(), abs=1e-7)
    assert (found["outcome"], found["tolerance"]) == (stays, tolerance)
    assert ("to first order" in found["kept"]) == (outcome == "answer")
    assert (found["effect"] is None) == (outcome != "answer")
    said = {"1%": "up to 1 % of ", "2nats": "up to 2 nats"}
    assert said[tolerance] in found["kept"]


@pytest.mark.parametrize(("which", "count"), [("head", 1), ("layer", 4), ("model", 8)])
def test_another_row_keeps_the_answer(at, lens, which, count):
    head = at.head(1, 2, "decoder")
    found = same_answer(at, head, 13, "least", "10%", which)
    assert len(found["maps"]) == count
    assert {"kind": "decoder", "layer": 1, "head": 2} in [one["choices"] for one in found["maps"]]
    options = {"together": True, "outcome": "prediction", "tolerance": "10%", "queries": 13}
    options |= {} if which == "model" else {"layers": 1}
    options |= {"heads": 2} if which == "head" else {}
    study = idl.alternatives(lens, [TEXT], **options).table
    assert found["measured"] == pytest.approx(study["measured"][0], rel=1e-4)
    assert 0 < found["measured"] <= study["allowed"][0]
    for name in ("mass_before", "mass_after", "keys_before", "keys_after"):
        assert found[name] == pytest.approx(study[name].mean(), abs=1e-6)
    assert (found["tolerance"], found["largest_share"]) == ("10%", 0.9)
    assert 0 < found["distance"] <= 1
    assert found["states"][-1]["change"] > 1e-5
    assert 1e-4 < found["output_error"] < 2


def test_an_alternative_keeps_the_output_and_the_model(at, lens):
    head = at.head(1, 2, "decoder")
    found = alternative(at, head, nothing)
    assert found["output_error"] < 1e-9
    assert 0.001 < found["distance"] <= 1
    assert max(state["change"] for state in found["states"]) < 1e-9
    assert [(state["sequence"], state["layer"]) for state in found["states"]] == [
        ("encoder", 0), ("encoder", 1), ("encoder", 2),
    ]  # fmt: skip
    assert found["logits_change"] < 1e-9


def test_what_changes_in_states_and_next_tokens(at, lens, monkeypatch):
    head = at.head(0, 1, "decoder")
    other = head.attention.roll(1, 0)
    other[0] = head.attention[0]
    run = lens.substitute({(0, 1, "decoder"): other}, at.item)
    plain = lens.substitute({}, at.item)
    found = changed(at, run)
    (before,), (after,) = plain.hidden_states.values(), run.hidden_states.values()
    changes = [
        float((two - one).norm() / one.norm()) for one, two in zip(before, after, strict=True)
    ]
    assert [state["change"] for state in found["states"]] == pytest.approx(changes)
    assert changes[0] == 0 < min(changes[1:])
    p, q = (one.logits.reshape(-1, 96)[-1].softmax(-1) for one in (plain, run))
    top = p.topk(8)
    assert found["next"] == [
        {"token": str(int(token)), "before": pytest.approx(float(p[token])), "after": pytest.approx(float(q[token]))}
        for token in top.indices
    ]  # fmt: skip
    monkeypatch.setattr(work, "TOP", 1)
    listed = [one["token"] for one in changed(at, run)["next"]]
    assert listed == [str(int(one.argmax())) for one in (p, q)], "what is most likely then, too"
    apart = (run.logits - plain.logits).norm() / plain.logits.norm()
    assert found["logits_change"] == pytest.approx(float(apart))

    assert found["answer"] == f"the model's {changed_words('prediction', kl(p, q))}"


def kl(p, q):
    return float((p * (p / q).log()).sum())


def last_probabilities(lens, at, replacements):
    logits = lens.substitute(replacements, at.item).logits
    return logits.reshape(-1, logits.shape[-1])[-1].softmax(-1)


def test_a_head_is_taken_out(at, lens):
    head = at.head(1, 2, "decoder")
    nothing_at_all = torch.zeros(14, 14).double()
    p, q = (
        last_probabilities(lens, at, given) for given in ({}, {(1, 2, "decoder"): nothing_at_all})
    )
    found = without_head(at, head)
    [largest] = p.topk(1).indices.tolist()
    assert found["next"][0]["token"] == str(largest)
    assert found["next"][0]["after"] == pytest.approx(float(q[largest]))
    assert found["same_top"] == (int(q.argmax()) == largest)
    assert found["answer"] == f"the model's {changed_words('prediction', kl(p, q))}"
    assert kl(p, q) > 1e-6
    assert found["change"] == pytest.approx(kl(p, q))
    assert found["largest"] == pytest.approx(float((q - p).abs().max()))
    assert found["output_error"] == 1


def test_a_weight_is_set_and_the_others_share_the_rest(at, lens):
    head = at.head(1, 2, "decoder")
    own = head.attention[13]
    found = broken_row(at, head, 13, 4, 0.0)
    expected = own.clone()
    expected[4] = 0
    expected /= expected.sum()
    assert found["weights"] == pytest.approx(expected.tolist(), abs=1e-12)
    whole = head.attention.clone()
    whole[13] = expected
    p, q = (last_probabilities(lens, at, given) for given in ({}, {(1, 2, "decoder"): whole}))
    assert f"changes by {kl(p, q):.3g} nats" in found["answer"]
    before, after = (row @ head.values for row in (own, expected))
    before, after = (row @ head.output_projection for row in (before, after))
    assert found["output_error"] == pytest.approx(float((after - before).norm() / before.norm()))


def test_a_change_by_hand_goes_as_far_as_weights_stay_positive(at, lens):
    head, query = at.head(0, 3, "decoder"), 12
    T = torch.cat([head.values, torch.ones(14, 1)], 1)[: query + 1]
    null = torch.eye(13) - T @ torch.linalg.pinv(T)
    asked = torch.zeros(14).double()
    asked[:13] = null[4]
    before = head.attention[query]
    small, large = (moved_row(at, head, query, (size * asked).tolist()) for size in (1e-6, 1e3))
    assert_close(doubles(small["weights"]), before + 1e-6 * asked, atol=1e-9, rtol=0)
    moved = doubles(large["weights"])
    assert float(moved.min()) == pytest.approx(0, abs=1e-12)
    assert float(moved[:13].amin()) >= 0
    step = (moved - before)[:13] / asked[:13]
    assert float(step.std()) < 1e-6 * float(step.mean())
    assert large["output_error"] < 1e-6
    for change in ([0.0] * 13, [float("nan")] * 14):
        with pytest.raises(InputError, match="weights"):
            moved_row(at, head, query, change)


def test_tokens_that_an_answer_needs_are_marked():
    decoder = idl.load("bundled-decoder")
    at = measured(decoder, "She put it on the", nothing, lambda step: None)
    found = work.needed(at, "table")
    assert found["words"].startswith("Text 0: the answer ' table' (the model's own: ")
    assert "<h3>table</h3>" in found["html"]
    with pytest.raises(InputError, match="at least two tokens"):
        work.needed(measured(decoder, "She", nothing, lambda step: None), "")
