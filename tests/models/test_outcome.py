"""What comes out of a model and how it depends on a row of attention, beside plain runs of a tiny decoder."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

import identilens as idl
from helpers.heads import doubles, normals, seeded
from helpers.zoo import BUILDERS, build, classifier, example, ids, tiny_decoder
from identilens.errors import InputError
from identilens.models import Lens
from identilens.models import outcome as outcomes
from identilens.models.explaining import Exact
from identilens.models.later import LaterLayers
from identilens.models.outcome import Answer, jacobian
from identilens.models.substitution import Rows

TEXT = ids(6)


@pytest.fixture(scope="module")
def lens():
    return tiny_decoder(1)


def answer(lens, outcome, positions=(4, 5)):
    return Answer(lens, lens.read([TEXT])[0], outcome, positions)


def removed(answer, *heads):
    return torch.cat([answer.between(*pair) for pair in answer.without(*heads)]).tolist()


@torch.no_grad()
def plain(lens):
    run = lens.model(torch.tensor([TEXT]), output_hidden_states=True)
    return {"prediction": run.logits[0], "states": run.hidden_states[-1][0]}


@pytest.mark.parametrize("outcome", ["states", "prediction"])
def test_changes_are_those_of_the_model(lens, outcome, monkeypatch):
    head = lens.layer(lens.read([TEXT])[0], 0).head(1)
    one = answer(lens, outcome)
    weights = head.attention.clone()
    weights[5] = torch.tensor([1.0, 0, 0, 0, 0, 0])
    after = lens.substitute({(0, 1, "decoder"): weights}, one.item)
    before = one.unchanged
    assert_close(before, plain(lens)[outcome][[4, 5]])
    if outcome == "states":
        moved = next(iter(after.hidden_states.values()))[-1][[4, 5]]
        expected = float((moved - before).norm() / before.norm())
    else:
        p, q = before.softmax(-1), after.logits[[4, 5]].softmax(-1)
        expected = float((p * (p / q).log()).sum())
    rows = Rows([5], weights[5:])
    assert expected > 1e-6
    assert one.change(5, {head.address: rows}) == pytest.approx(expected)
    assert one.change(5, {}) == pytest.approx(0, abs=1e-12)
    changes = one.between(torch.stack([before, one.after(after)]), before)
    assert changes.tolist() == pytest.approx([0, expected])
    # As if later positions alone gave something else.
    monkeypatch.setattr(outcomes, "relative", lambda *_: 1.0)
    assert answer(lens, outcome).change(5, {head.address: rows}) == pytest.approx(expected)


@pytest.mark.parametrize("outcome", ["states", "prediction"])
def test_small_changes_are_those_of_the_derivative(lens, outcome):
    one = answer(lens, outcome)
    [root], _ = one.linearised([(0, 1)], 4)
    assert root.shape == (4, 4)
    head = lens.layer(one.item, 0).head(1)
    move = doubles([[1.0, -2.0, 0.5, 0.25, 0.25, 0.0]])
    step = 1e-4
    change = one.change(4, {head.address: Rows([4], head.attention[4:5] + step * move)})
    predicted = (step * move @ head.values @ root).norm() ** 2
    measured = change**2 if outcome == "states" else change
    assert measured == pytest.approx(float(predicted), rel=1e-2)


@pytest.mark.parametrize("outcome", ["states", "prediction"])
def test_where_heads_have_other_weights_changes_rise_by_the_slope(lens, outcome):
    one = answer(lens, outcome)
    head = lens.layer(one.item, 0).head(1)
    even = doubles([[0.2, 0.2, 0.2, 0.2, 0.2, 0.0]])
    moved = torch.lerp(head.attention[4:5], even, 0.1)
    move = doubles([[0.5, -0.5, 0.25, -0.25, 0.0, 0.0]])
    [root], [slope] = one.linearised([(0, 1)], 4, {(0, 1): Rows([4], moved)})

    def square(step):
        change = one.change(4, {head.address: Rows([4], moved + step * move)})
        return change**2 if outcome == "states" else change

    step, mixed = 1e-4, move @ head.values
    assert square(0) > 1e-9
    rising = (square(step) - square(-step)) / (2 * step)
    # For the prediction to second order in the change that there is already.
    near = 1e-4 if outcome == "states" else 0.1
    assert rising == pytest.approx(float(2 * mixed @ slope), rel=near)
    bent = (square(step) - 2 * square(0) + square(-step)) / step**2
    assert bent == pytest.approx(2 * float((mixed @ root).norm() ** 2), rel=0.2)
    assert not one.linearised([(0, 1)], 4, {})[1].any()


def test_few_classes_are_derived_backwards_as_forwards(monkeypatch):
    lens = classifier()
    one = Answer(lens, lens.read([TEXT])[0], "prediction", (0,))
    heads = [(layer, head) for layer in (0, 1) for head in range(4)]
    roots = [one.linearised(heads, 2)[0].flatten(0, 1)]
    forward = lambda outcome, at, at_once: jacobian(outcome, at, at_once=3)  # noqa: E731
    monkeypatch.setattr("identilens.models.outcome.jacobian", forward)
    roots.append(one.linearised(heads, 2)[0].flatten(0, 1))
    squares = [root @ root.mT for root in roots]
    assert_close(*squares, rtol=1e-9, atol=1e-15)
    assert float(squares[0].abs().max()) > 1e-6
    assert not one.text.held


def test_a_single_output_is_refused():
    single = classifier(labels=1)
    with pytest.raises(InputError, match="has one output: there is nothing to choose from"):
        idl.certify(single, [TEXT], layers=1, heads=0, queries=2, outcome="prediction")


@pytest.mark.parametrize("outcome", ["states", "prediction"])
@pytest.mark.parametrize("left", ["zero", "mean"])
def test_heads_that_are_removed_write_nothing_or_their_mean(monkeypatch, outcome, left):
    lens = classifier()
    one, head = answer(lens, outcome), lens.layer(lens.read([TEXT])[0], 0).head(1)
    remains = head.attention.mean(0) if left == "mean" else torch.zeros(6).double()
    remains = remains.expand(6, 6)

    def alone(share):
        """The change where a share of the head's output is removed."""
        weights = torch.lerp(head.attention, remains, share)
        after = one.after(lens.substitute({head.address: weights}, one.item))
        return float(one.between(after, one.unchanged))

    monkeypatch.setattr(outcomes, "_AT_ONCE", 2)
    found = removed(one, 0, [1, 0, 1], left)
    assert [found[0], found[2]] == pytest.approx([alone(1.0)] * 2, rel=1e-9)
    assert found[1] != pytest.approx(found[0], rel=1e-3)
    assert min(found) > 1e-6


def test_the_same_top_is_that_of_every_position_that_counts(lens):
    one = answer(lens, "prediction", (1, 4))
    plain = lens.substitute({}, one.item)
    assert one.same_top(plain)
    for place, same in ((1, False), (2, True), (4, False)):
        logits = plain.logits.clone()
        logits[place] = -logits[place]
        assert one.same_top(replace(plain, logits=logits)) == same
    states = answer(lens, "states", (1,))
    assert states.same_top(plain)
    turned = {"encoder": -plain.hidden_states["encoder"]}
    assert not states.same_top(replace(plain, hidden_states=turned))


@pytest.mark.parametrize("family", BUILDERS)
def test_a_removal_runs_the_model_from_the_layer_of_the_head_on(monkeypatch, family):
    lens = Lens(build(family))
    item = lens.read(example(family))[0]
    sites = lens.sites(item)
    number, seen = len(sites) - 1, []
    stack = [site for site in sites if site.slot and site.slot[0] == sites[-1].slot[0]]
    first = lens.body.get_submodule(stack[0].name)
    later = Answer(lens, item, "states")
    found = removed(later, number, [0, 1])
    with first.register_forward_hook(lambda *_: seen.append(1)):
        assert removed(later, number, [0, 1], "mean") != found
        assert (len(seen) == 0) == (later._layers.skipped(number) > 0)
    monkeypatch.setattr(LaterLayers, "skipped", lambda *_: 0)
    assert found == pytest.approx(removed(Answer(lens, item, "states"), number, [0, 1]), rel=1e-5)


@pytest.mark.parametrize("outcome", ["prediction", "states"])
def test_estimates_are_those_of_finite_differences_in_the_same_directions(outcome):
    lens = tiny_decoder(2)
    one = answer(lens, outcome, [3, 5])
    found = one.estimates(probes=5, seed=7)
    step = 1e-6

    def scaled(layer, head, share):
        def gated(call):
            output = call.attend()[0].clone()
            if call.index == layer:
                output[:, :, head] *= share
            return output

        run = lens.run([one.item], gated, task_head=True, changes=True, output_hidden_states=True)
        entries = run.logits[0] if outcome == "prediction" else run.hidden_states[-1][0]
        return entries[[3, 5]]

    own = scaled(0, 0, 1.0)
    generator = seeded(7)
    size = own.numel() // 8 + 1
    octets = [torch.randint(256, (size,), dtype=torch.uint8, generator=generator) for _ in range(5)]
    bits = np.unpackbits(np.stack(octets), axis=1, bitorder="little")
    probes = 2 * torch.from_numpy(bits)[:, : own.numel()].double() - 1
    for layer in (0, 1):
        for head in (0, 1):
            slope = (scaled(layer, head, 1 + step) - scaled(layer, head, 1 - step)) / (2 * step)
            if outcome == "prediction":
                p = own.softmax(-1)
                slope = (slope - (slope * p).sum(-1, keepdim=True)) * (p / 2).sqrt()
            else:
                slope = slope / own.norm()
            square = sum(float(slope.flatten() @ probe) ** 2 for probe in probes) / 5
            expected = square if outcome == "prediction" else square**0.5
            assert expected > 1e-6
            assert float(found[layer][head]) == pytest.approx(expected, rel=1e-4)


HEADS = [(0, 1), (1, 3)]
N = 12


def derived(lens, outcome, query, *, whole=False):
    """Return J, and whether only the positions from the row on were computed."""
    answer = Answer(lens, lens.read([ids(N)])[0], outcome, (5, 9, N - 1))
    if whole:
        answer._derived.held.clear()
    return answer.derivative(HEADS, query, {})[0], bool(answer._derived.held)


@pytest.mark.parametrize("query", [7, N - 1])
@pytest.mark.parametrize("outcome", ["prediction", "states"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral"])
def test_the_derivative_is_that_of_the_whole_text_and_of_differences(family, outcome, query):
    lens = Lens(build(family).double())
    item, later = lens.read([ids(N)])[0], [at for at in (5, 9, N - 1) if at >= query]
    change = normals(seeded(), 2, 8)

    def moved(step):
        def add(call):
            output = call.mixed().clone()
            for move, (number, head) in zip(change, HEADS, strict=True):
                output[0, query, head] += step * move * (call.index == number)
            return output

        run = lens.run([item], add, task_head=True, output_hidden_states=True)
        return (run.logits if outcome == "prediction" else run.hidden_states[-1])[0, later]

    with Exact():
        found, held = derived(lens, outcome, query)
        whole, _ = derived(lens, outcome, query, whole=True)
        difference = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert held
    assert (whole[:, -len(later) :] - found).norm() <= 1e-9 * found.norm()
    assert not whole[:, : -len(later)].any()
    expected = torch.einsum("t,tpe->pe", change.flatten(), found)
    assert (difference - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_row_of_a_long_text_costs_a_few_passes_in_every_precision(dtype):
    text, model = ids(128), build("llama").to(getattr(torch, dtype))
    lens, single, read = Lens(model), Lens(copy.deepcopy(model).float()), []
    with FlopCounterMode(display=False) as once:
        lens.run([text], task_head=True)
    with model.model.embed_tokens.register_forward_pre_hook(
        lambda _, args: read.append(args[0].shape[1] == 128)
    ):
        settings = {"layers": 1, "heads": 2, "queries": -1, "outcome": "prediction"}
        found = idl.certify(lens, [text], **settings)
    assert sum(read) <= 5
    answers = [Answer(one, one.read([text])[0], "prediction", (127,)) for one in (lens, single)]
    with FlopCounterMode(display=False) as every:
        roots = [one.linearised([(1, 2)], 127)[0][0] for one in answers]
    assert every.get_total_flops() <= 2 * 8 * once.get_total_flops()
    metric, exact = (root @ root.mT for root in roots)
    assert (metric - exact).norm() <= 0.01 * exact.norm()
    assert found.rows["cast"].item() == pytest.approx(answers[0].cast)
