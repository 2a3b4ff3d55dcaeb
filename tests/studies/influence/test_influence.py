"""Heads and keys that are removed from a model, beside plain runs with hooks of the model's own modules."""

import pytest
import torch
from torch.nn.functional import kl_div

import identilens as idl
from helpers.command import failing, identilens
from helpers.zoo import build, classifier, example, ids, tiny_decoder
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.reading import read_head
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

    hook = model.transformer.h[layer].attn.c_proj.register_forward_pre_hook(without)
    try:
        return model(torch.tensor([TEXT]), output_hidden_states=True)
    finally:
        hook.remove()


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


@pytest.mark.parametrize("left", ["zero", "mean"])
@pytest.mark.parametrize("outcome", ["prediction", "states"])
def test_estimates_are_those_of_finite_differences_in_the_same_directions(lens, outcome, left):
    answer = Answer(lens, lens.read([TEXT])[0], outcome, [3, 8])
    found = answer.estimates(left, probes=5, seed=7)
    step = 1e-6

    def scaled(layer, head, share):
        def gated(call):
            output = call.attend()[0].clone()
            if call.index == layer:
                rest = output.mean(1, keepdim=True) if left == "mean" else 0 * output
                output[:, :, head] = (rest + share * (output - rest))[:, :, head]
            return output

        run = lens.run([answer.item], gated, whole=True, changes=True, output_hidden_states=True)
        entries = run.logits[0] if outcome == "prediction" else run.hidden_states[-1][0]
        return entries[[3, 8]]

    own = scaled(0, 0, 1.0)
    generator = torch.Generator().manual_seed(7)
    probes = [torch.randn(own.numel(), generator=generator, dtype=torch.float64) for _ in range(5)]
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


def test_a_hidden_key_leaves_the_other_weights_scaled_up(lens):
    found = idl.influence(lens, [TEXT], layers=1, heads=1, queries=("last", 0), directions=0)
    item = lens.read([TEXT])[0]
    head, answer = read_head(lens, item, 1, 1), Answer(lens, item, "prediction")
    last = found.hidden_keys.filter(query=8)
    assert last["key"].to_list() == list(range(9))
    for row in last.iter_rows(named=True):
        others = head.attention[8].clone()
        others[row["key"]] = 0.0
        rows = Rows([8], others[None] / others.sum())
        assert row["weight"] == pytest.approx(float(head.attention[8, row["key"]]))
        assert row["effect"] == pytest.approx(answer.with_rows(head, rows) / 9, rel=1e-9)
    [alone] = found.hidden_keys.filter(query=0).iter_rows(named=True)
    assert (alone["weight"], alone["effect"]) == (1.0, None)
    assert found.table["estimate"].null_count() == 1


def test_positions_that_count_are_chosen(lens):
    last = idl.influence(lens, [TEXT], answer="last", directions=0).table
    item = lens.read([TEXT])[0]
    expected = Answer(lens, item, "prediction", [8]).without(1, [0, 1])
    assert last.filter(layer=1)["effect"].to_list() == pytest.approx(expected)


def test_heads_in_one_run_are_removed_as_alone(lens):
    answer = Answer(lens, lens.read([TEXT])[0], "states")
    alone = [value for head in (1, 0) for value in answer.without(0, [head])]
    assert answer.without(0, [1, 0]) == pytest.approx(alone, rel=1e-9)


@pytest.mark.parametrize(("model", "outcome"), [("classifier", "prediction"), ("bert", "states")])
def test_classifiers_and_encoders_have_an_outcome(model, outcome):
    one = classifier() if model == "classifier" else Lens(build(model))
    found = idl.influence(one, [TEXT, TEXT[:4]], outcome=outcome, directions=2)
    assert found.table["text"].unique().sort().to_list() == [0, 1]
    assert (found.table["effect"] > 0).all()


@pytest.mark.parametrize("family", ["t5", "mistral", "vit"])
def test_other_families(family):
    one, text = Lens(build(family)), example(family)
    outcome = "prediction" if family == "mistral" else "states"
    found = idl.influence(one, text, outcome=outcome, directions=1)
    assert len(found.heads()) == sum(site.heads for site in one.sites(one.read(text)[0]))
    assert found.table["effect"].is_finite().all()


def test_on_the_command_line(bundled_path, tmp_path):
    asked = ("influence", "--model", bundled_path, "--text", "Snow fell.", "--layers", 5, "-o")
    done = identilens(*asked, tmp_path / "run", "--outcome", "states", code=0)
    assert "heads are influential" in done.output
    assert (tmp_path / "run" / "report.html").exists()
    assert "predicts nothing: it has no logits" in failing(*asked, tmp_path / "no")
    layer = failing(*asked, tmp_path / "no", "--outcome", "layer")
    assert "--outcome to be prediction or states" in layer
