"""Heads whose outputs are normalised before the output projection: their output is what they mix, A V."""

import pytest
import torch
from scipy.optimize import linprog
from torch import nn
from torch.testing import assert_close

import identilens as idl
from helpers.gated import NORMED, normed
from helpers.heads import watched_attention
from helpers.zoo import ids
from identilens.cli.selfcheck import proof
from identilens.errors import InputError, UnsupportedModelError
from identilens.models import identity


@pytest.mark.parametrize("family", sorted(NORMED))
def test_rows_are_projected_with_the_length_as_it_is(family):
    lens, texts = normed(family), [ids(12), ids(7, 1)]
    for capture, text in zip(lens.capture(texts, weights=True), texts, strict=True):
        for layer in capture.layers:
            lens.model.set_attn_implementation("eager")
            attention, seen = watched_attention(lens, layer.site.name, text)
            with torch.no_grad():
                mixed = torch.stack([head.family_weights @ head.values for head in layer.heads], 1)
                read = NORMED[family][1](attention, seen["states"], mixed).view_as(mixed)
            lens.model.set_attn_implementation("sdpa")
            added = 0
            for head in layer.heads:
                assert_close(head.family_weights, seen["weights"][0, head.head], atol=1e-6, rtol=0)
                own = head.gate * mixed[:, head.head]
                assert_close(own, read[:, head.head], atol=1e-6, rtol=1e-5)
                added = added + own[5] @ head.output_projection
                assert head.at(5) is head.projected
                compact, values = head.projected.compact, head.values
                assert_close(compact @ compact.mT, values @ values.mT)
                row = mixed[5, head.head] @ head.row_projection(5)
                assert_close(row, own[5] @ head.output_projection)
            assert_close(added, seen["output"][5], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", sorted(NORMED))
def test_other_weights_with_the_same_mixture_leave_the_model_as_it_is(family):
    far = idl.alternatives(normed(family), [ids(20)], layers=1, heads=0).table
    assert far["mean_total_variation"].max() > 0.02
    assert far["hidden_change"].max() < 1e-5


def test_intervals_and_tolerances_are_those_of_the_mixture():
    lens = normed()
    head = next(lens.capture([ids(14)], weights=True)).layers[1].head(2)
    certified = idl.certify(lens, [ids(14)], layers=1, heads=2, queries=13, tolerance=("0", "10%"))
    exact, loose = certified.table.partition_by("tolerance", maintain_order=True)
    keys, row = exact["key"].to_list(), head.attention[13]
    kept = torch.cat([head.values, torch.ones(14, 1)], 1).mT.numpy()
    for key, lo in zip(keys, exact["lo"], strict=True):
        least = linprog(torch.eye(14)[key].numpy(), A_eq=kept, b_eq=kept @ row.numpy())
        assert lo == pytest.approx(least.fun, abs=1e-6)
    limit = 0.1 * float((row @ head.values).norm())
    step = limit / float((head.values[keys[0]] - head.values[keys[1]]).norm())
    assert loose["hi"][0] >= min(loose["value"][0] + min(step, row[keys[1]]), 1) - 1e-9
    [text] = [one.text for one in certified.sections() if one.anchor == "intervals"]
    assert any("The model normalises what its heads mix" in part for part in text)


def test_what_a_head_adds_is_bounded_only_while_the_norm_stays():
    lens = normed()
    direction = torch.ones(lens.model.config.hidden_size)
    claim = idl.claims.source(direction, 2, below=10.0)
    with pytest.raises(InputError, match="normalises"):
        idl.certify(lens, [ids(9)], layers=0, heads=1, queries=8, tolerance="1%", claim=claim)
    exact = idl.certify(lens, [ids(9)], layers=0, heads=1, queries=8, tolerance=0, claim=claim)
    [(lo, value, hi)] = exact.claims.select("lo", "value", "hi").rows()
    assert lo <= value <= hi
    audit = idl.audit(lens, [ids(9)], examples=0)
    assert "fixes the output of each head" not in audit.summary().text


def test_a_prediction_takes_the_norm_into_account():
    settings = {"layers": 0, "heads": 1, "queries": 13, "outcome": "prediction"}
    found = idl.certify(normed(), [ids(14)], **settings, tolerance="0.01%").rows
    assert found["predicted"][0] == pytest.approx(found["measured"][0], rel=0.1)


def test_the_checks_of_a_users_own_model_pass():
    checks = proof(normed(), [ids(9), ids(6, 1)])
    assert all(check.passed for check in checks)
    audit = idl.audit(normed(), [ids(6)], certain_rows=0, effects="none")
    text = " ".join(words for section in audit.sections() for words in section.text)
    assert "The model normalises what its heads mix" in text
    assert "The model gates" not in text
    row = idl.certify(normed(), [ids(6)], layers=0, heads=1, queries=-1).summary().text
    assert "With what the head mixes, before the model normalises it, the same" in row


class Shifted(nn.Module):
    """A norm that later also takes off the mean."""

    def forward(self, mixed):
        return mixed - mixed.mean(-1, keepdim=True)


def test_a_norm_that_is_none_any_more_is_noticed():
    lens = normed()
    lens.sites(lens.read([ids(8)])[0])
    for layer in lens.body.layers:
        layer.self_attn.attn_sub_norm = Shifted()
    lens._sites_of = identity.state_of(lens.model)
    with pytest.raises(UnsupportedModelError, match="attention"):
        next(lens.capture([ids(8)]))
