"""Explanations of final hidden states by input tokens."""

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids
from identilens.measures.explanations import rank_agreement
from identilens.models.rollouts import final_rollouts
from identilens.studies.faithfulness.inputs import FinalStates
from identilens.studies.faithfulness.study import faithfulness, self_agreement

QUICK = {"rows": 1, "groups": (1, 2), "searched": 4, "alternatives": 1, "explained": 2}


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("bert").double())


def test_states_are_explained_and_judged_by_what_replacing_tokens_does(lens):
    text = ids(13)
    found = faithfulness(lens, [text], **QUICK)
    names = ["rollout_raw", "rollout_effective", "rollout_norm", "alti", "hta", "random"]
    assert found.states["explanation"].unique(maintain_order=True).to_list() == names
    [item] = lens.read([text])
    final = FinalStates(lens, item)
    embedded = lens.body.embeddings(torch.tensor([text]))[0].detach()
    torch.testing.assert_close(final.inputs, embedded)
    position = found.states["position"][0]
    effects = []
    for token in range(13):
        inputs = embedded.clone()
        inputs[token] = embedded.mean(0)
        with torch.no_grad():
            state = lens.body.encoder(inputs[None]).last_hidden_state[0, position]
        effects.append((state - final.own[position]).norm() / final.own[position].norm())
    scores = final_rollouts(lens, item)["alti"][position]
    expected = rank_agreement(scores.double(), torch.stack(effects).double())
    row = found.states.filter(position=position, explanation="alti").row(0, named=True)
    assert row["correlation"] == pytest.approx(float(expected), abs=0.02)
    agreed = found.states.filter(explanation="alti")["agreement"]
    assert agreed.is_between(-1, 1 + 1e-9).all()
    assert found.states.filter(explanation="random")["agreement"].null_count() == 2
    assert "states_plane" in found.charts()
    assert "Final states by input tokens" in found.overview()


def test_causal_states_see_their_tokens():
    found = faithfulness(idl.Lens(build("gpt2").double()), [ids(6)], **QUICK)
    assert (found.states["n_input"] == found.states["position"] + 1).all()


def test_agreement_counts_the_tokens_that_a_state_sees():
    own = torch.tensor([[0.2, 0.8, *[0.0] * 38]])
    other = torch.tensor([[0.8, 0.2, *[0.0] * 38]])
    seen = torch.arange(40)[None] < 2
    assert self_agreement(own, other, seen).tolist() == pytest.approx([-1.0])
    assert self_agreement(own, own, seen).tolist() == pytest.approx([1.0])
    even, none = torch.ones_like(own), torch.ones_like(seen)
    assert self_agreement(even, even, none).isnan().tolist() == [True], (
        "what has no order is not stable"
    )
    assert self_agreement(even, own, none).isnan().tolist() == [True]
    assert self_agreement(own, even, none).tolist() == [0.0]


@pytest.mark.parametrize(
    ("family", "has"), [("llama", True), ("gemma2", False), ("gpt_neox", False)]
)
def test_alti_is_left_out_where_a_block_is_not_its_input_plus_attention(family, has):
    lens = idl.Lens(build(family).double())
    assert ("alti" in final_rollouts(lens, lens.read([ids(7)])[0])) == has
