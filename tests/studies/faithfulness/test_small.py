"""Final states and what explains them, on a model of one layer, beside plain runs of it."""

from types import SimpleNamespace

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids, tiny_encoder
from identilens.errors import InputError
from identilens.measures.explanations import rank_agreement
from identilens.models.rollouts import final_rollouts
from identilens.studies.faithfulness import inputs
from identilens.studies.faithfulness.inputs import STEPS, FinalStates, attributions
from identilens.studies.faithfulness.study import faithfulness

TEXT = ids(6)


@pytest.fixture(scope="module")
def lens():
    return tiny_encoder()


@pytest.fixture(scope="module")
def final(lens):
    return FinalStates(lens, lens.read([TEXT])[0])


@torch.no_grad()
def states(lens, given):
    return lens.body.encoder(given[None]).last_hidden_state[0]


def test_states_are_functions_of_the_embeddings(lens, final):
    embedded = lens.body.embeddings(torch.tensor([TEXT]))[0].detach()
    torch.testing.assert_close(final.inputs, embedded)
    torch.testing.assert_close(final.own, states(lens, embedded))
    assert not final.causal
    assert [final.seen(position) for position in (0, 5)] == [6, 6]
    moves = []
    for tokens in ([0], [1, 3]):
        given = embedded.clone()
        given[tokens] = embedded.mean(0)
        apart = states(lens, given)[2] - final.own[2]
        moves.append(float(apart.norm() / final.own[2].norm()))
    sets = torch.tensor([[True, False, False, False], [False, True, False, True]])
    assert final.removed(2, sets)["hidden"].tolist() == pytest.approx(moves)
    assert final.removed(2, sets.flip(0))["hidden"].tolist() == pytest.approx(moves[::-1])


def test_a_decoders_state_sees_the_tokens_up_to_its_own():
    causal = FinalStates(lens := idl.Lens(build("gpt2").double()), lens.read([TEXT])[0])
    assert causal.causal
    assert [causal.seen(position) for position in (0, 5)] == [1, 6]
    with pytest.raises(InputError, match="one stack"):
        FinalStates(pair := idl.Lens(build("t5")), pair.read([TEXT])[0])


def test_explanations_are_the_rollouts_and_the_token_attribution(lens, final):
    found = final.explained([4, 1], 0, attribution=False)
    rollouts = final_rollouts(lens, final.item)
    assert list(found) == ["rollout_raw", "rollout_effective", "rollout_norm", "alti", "hta"]
    for name in ("raw", "effective", "norm"):
        torch.testing.assert_close(found[f"rollout_{name}"], rollouts[name][[4, 1]].double())
    torch.testing.assert_close(found["alti"], rollouts["alti"][[4, 1]].double())
    # With as many probes as the input has dimensions, the sketch is exact.
    jacobian = torch.func.jacrev(final)(final.inputs)
    norms = jacobian.square().sum((1, 3)).sqrt()
    expected = norms / norms.sum(-1, keepdim=True)
    torch.testing.assert_close(found["hta"], expected[[4, 1]].detach(), atol=1e-6, rtol=0)
    alone = final.explained([4], 0, attribution=False)["hta"]
    torch.testing.assert_close(alone, expected[[4]].detach(), atol=1e-6, rtol=0)


def test_attributions_ask_for_whole_tokens(monkeypatch, final):
    asked = []

    class Method:
        def __init__(self, score):
            self.score = score

        def attribute(self, given, **options):
            asked.append((given.requires_grad, options))
            return self.score(given)[:, None, None] * torch.ones_like(given)

    methods = dict.fromkeys(("InputXGradient", "IntegratedGradients", "Occlusion"), Method)
    monkeypatch.setattr(inputs, "captum", lambda: SimpleNamespace(**methods))
    found = attributions([final._score(position) for position in (1, 2)], final.inputs)
    assert [options for _, options in asked[::2]] == [
        {}, {"n_steps": STEPS, "internal_batch_size": 1}, {"sliding_window_shapes": (1, 8)},
    ]  # fmt: skip
    assert asked[0][0]
    assert not final.inputs.requires_grad
    lengths = [float(final.own[position].norm()) for position in (1, 2)]
    for name, per_entry in (("gradient_input", 8), ("integrated_gradients", 8), ("occlusion", 1)):
        for row, length in zip(found[name].tolist(), lengths, strict=True):
            assert row == pytest.approx([per_entry * length] * 6)


def test_states_of_a_text_are_judged(lens, final):
    found = faithfulness(
        lens, [TEXT], rows=1, groups=(1, 2), searched=4, alternatives=1, explained=2
    ).states
    names = ["rollout_raw", "rollout_effective", "rollout_norm", "alti", "hta", "random"]
    assert found["explanation"].to_list() == 2 * names
    first, second = found["position"].unique(maintain_order=True)
    assert 0 <= first < second < 6
    assert set(found["n_input"]) == {6}
    assert set(found["outcome"]) == {"hidden"}
    effects = final.removed(first, torch.eye(6, dtype=torch.bool))["hidden"].double()
    expected = rank_agreement(final_rollouts(lens, final.item)["alti"][first].double(), effects)
    row = found.filter(position=first, explanation="alti").row(0, named=True)
    assert row["correlation"] == pytest.approx(float(expected), abs=1e-6)
    assert 0 < row["floor"] < 1e-5
    assert row["above_floor"] == 6
    assert -1e-9 <= row["naopc"] <= 1 + 1e-9
    random = found.filter(explanation="random")
    assert random["agreement"].null_count() == 2
    assert found.filter(explanation="alti")["agreement"].is_between(-1, 1 + 1e-9).all()
    assert found.filter(explanation="rollout_raw")["agreement"].null_count() == 0
