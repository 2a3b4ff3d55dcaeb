"""Heads with a gate before the output projection: each row has its own T, V diag(g_i) W_O."""

import pytest
import torch
import transformers as hf
from scipy.optimize import linprog
from torch.testing import assert_close

import identilens as idl
from helpers.gated import GATED, NORMED, gated, normed
from helpers.heads import watched_attention
from helpers.zoo import _LLAMA, _random, ids
from identilens.cli.selfcheck import proof
from identilens.errors import InputError
from identilens.models import Lens


@pytest.mark.parametrize("family", sorted(GATED))
def test_gates_are_the_familys_own_and_give_its_output(family):
    lens, texts = gated(family), [ids(12), ids(7, 1)]
    for capture, text in zip(lens.capture(texts, weights=True), texts, strict=True):
        for layer in capture.layers:
            attention, seen = watched_attention(lens, layer.site.name, text)
            with torch.no_grad():
                gate = GATED[family][1](attention, seen["states"])[0]
            added = 0
            for head in layer.heads:
                assert_close(head.gate, gate[:, head.head], atol=1e-6, rtol=1e-6)
                projection = attention.o_proj.weight.T[head.head * 8 : head.head * 8 + 8].detach()
                mixed = head.family_weights @ head.values
                added = added + (mixed * gate[:, head.head]) @ projection
                own = head.values @ (gate[5, head.head][:, None] * projection)
                one = head.projected_for(5).compact
                assert_close(one @ one.mT, own @ own.mT, atol=1e-5, rtol=1e-5)
            assert_close(added, seen["output"], atol=2e-5, rtol=1e-5)


def _ends(row, T):
    """The ends of a row's weights by a solver of the plain program."""
    kept = torch.cat([T, torch.ones(len(T), 1)], 1).mT.numpy()
    return [
        [
            sign * linprog(sign * unit, A_eq=kept, b_eq=kept @ row.numpy(), method="highs").fun
            for sign in (1, -1)
        ]
        for unit in torch.eye(len(row)).numpy()
    ]


@pytest.mark.parametrize("family", ["afmoe", "bitnet"])
def test_intervals_are_those_of_the_rows_own_values(family):
    """Values as a gate scales them, or as they are mixed before a norm."""
    lens = gated(family) if family in GATED else normed(family)
    head = next(lens.capture([ids(14)], weights=True)).layers[1].head(2)
    own = head.values @ head.row_projection(13) if family in GATED else head.values
    found = idl.certify(lens, [ids(14)], layers=1, heads=2, queries=13, tolerance=("0", "10%"))
    exact, loose = found.table.partition_by("tolerance", maintain_order=True)
    keys = exact["key"].to_list()
    ends = torch.tensor(_ends(head.attention[13, keys], own[keys])).double()
    assert_close(exact.select("lo", "hi").to_torch().double(), ends, atol=1e-6, rtol=0)
    norms = (head.attention[13, keys, None] * own[keys]).norm(dim=1)
    assert_close(exact["norm_share"].to_torch().double(), norms / norms.sum(), atol=1e-9, rtol=0)
    # A small enough move of weight between two keys is an alternative, in the norm of these values.
    limit = 0.1 * float((head.attention[13] @ own).norm())
    for first, second in ((0, 1), (1, 2), (3, 0)):
        apart = float((own[keys[first]] - own[keys[second]]).norm())
        step = min(limit / apart, float(head.attention[13, keys[second]]))
        row = loose.row(first, named=True)
        assert row["hi"] >= row["value"] + step - 1e-9
    [text] = [one.text for one in found.sections() if one.anchor == "intervals"]
    said = any("The model normalises what its heads mix" in part for part in text)
    assert said == (family == "bitnet")


def test_a_closed_gate_leaves_a_row_more_alternatives():
    lens = gated("afmoe")
    attention = lens.body.layers[1].self_attn
    with torch.no_grad():
        attention.gate_proj.weight[16:20] *= 0
        attention.gate_proj.weight[16:20] -= 1e5 * lens.model.model.norm.weight.new_ones(32)
    head = next(lens.capture([ids(14)], weights=True)).layers[1].head(2)
    closed = [query for query in range(14) if not head.gate[query, :4].any()]
    assert 0 < len(closed) < 14
    for query in range(14):
        assert head.projected_for(query).rank == (4 if query in closed else 8)
    row = max(closed)
    table = idl.certify(lens, [ids(14)], layers=1, heads=2, queries=row).table
    exact = table.filter(tolerance="0")
    keys = exact["key"].to_list()
    own = (head.values * head.gate[row])[keys]
    assert_close(
        exact.select("lo", "hi").to_torch().double(),
        torch.tensor(_ends(head.attention[row, keys], own)).double(),
        atol=1e-6,
        rtol=0,
    )


@pytest.mark.skipif(
    not hasattr(hf, "Inkling2TextConfig"), reason="this transformers has no Inkling 2"
)
def test_sinks_of_each_query_and_attention_over_layers_are_told_apart():
    config = hf.Inkling2TextConfig(
        **{**_LLAMA, "num_hidden_layers": 3}, head_dim=8, swa_head_dim=8, swa_num_attention_heads=4,
        swa_num_key_value_heads=2, sliding_window_size=4, n_routed_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, layer_types=["hybrid_sliding", "hybrid_sliding", "hybrid"],
        n_layers_per_attn_res_block=2,
    )  # fmt: skip
    torch.manual_seed(0)
    lens = Lens(_random(hf.Inkling2TextModel(config)))
    [text] = lens.capture([ids(9)], weights=True)
    lens.model.set_attn_implementation("eager")
    with torch.no_grad():
        own = lens.model(torch.tensor([ids(9)]), output_attentions=True, use_cache=False)
    for layer, weights in zip(text.layers, own.attentions, strict=True):
        assert layer.sink
        assert layer.site.gated
        assert_close(layer.weights, weights[0], atol=1e-6, rtol=0)
        assert bool((layer.weights.sum(-1) < 0.999).any())
    assert all(check.passed for check in proof(lens, [ids(9), ids(6, 1)]))


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
                assert head.projected_for(5) is head.projected
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


def test_what_a_head_adds_is_bounded_only_while_the_norm_stays():
    lens = normed()
    direction = torch.ones(lens.model.config.hidden_size)
    claim = idl.claims.source(direction, 2).below(10.0)
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
    row = idl.certify(normed(), [ids(6)], layers=0, heads=1, queries=-1).summary().text
    assert "With what the head mixes, before the model normalises it, the same" in row
