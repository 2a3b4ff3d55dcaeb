"""Final states and what explains them, on a model of one layer, beside plain runs of it."""

from types import SimpleNamespace

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids, tiny_encoder
from identilens.errors import InputError, NumericalError
from identilens.linalg import ProjectedValues
from identilens.measures.explanations import rank_agreement
from identilens.models.rollouts import final_rollouts
from identilens.studies.faithfulness import inputs, sampling, study
from identilens.studies.faithfulness.inputs import STEPS, FinalStates, attributions
from identilens.studies.faithfulness.sampling import (
    ROUNDINGS,
    FaithfulnessSettings,
    SampledMap,
    roundings,
    sampled_maps,
)
from identilens.studies.faithfulness.study import (
    control_rows,
    determinacy_rows,
    entropy_parameters,
    faithfulness,
    self_agreement,
)

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


def test_roundings_are_as_large_as_those_of_the_precision():
    for dtype, size in ((torch.bfloat16, 2**-7), (torch.float32, 2**-23), (torch.float64, 2**-23)):
        factors = roundings((50, 2), dtype, 3)
        assert factors.shape == (ROUNDINGS, 50, 2)
        assert 0.99 * size < float((factors - 1).abs().max()) <= size
        assert float((factors - 1).min()) < -0.9 * size
    assert torch.equal(roundings((2,), torch.float32, 3), roundings((2,), torch.float32, 3))
    assert not torch.equal(roundings((2,), torch.float32, 3), roundings((2,), torch.float32, 4))


@pytest.mark.usefixtures("unchecked_shapes")
def test_maps_and_rows_are_drawn_from_the_seed_and_the_text(monkeypatch):
    sites = [SimpleNamespace(layer=layer, kind="decoder") for layer in range(3)]
    places = [(site, head) for site in sites for head in range(4)]
    hidden = torch.ones(6, 6, dtype=torch.bool).tril()

    def read(lens, item, layer, head, kind):
        visible = None if layer == 0 else hidden
        return SimpleNamespace(
            attention=torch.zeros(6, 6), visible=visible, refuse_sink=lambda: None
        )

    monkeypatch.setattr(sampling, "places_of", lambda *_: places)
    monkeypatch.setattr(sampling, "read_head", read)
    monkeypatch.setattr(sampling, "MapRuns", lambda *given: given)

    def drawn(text=0, **options):
        settings = FaithfulnessSettings(**options)
        return [
            (one.place["layer"], one.place["head"], *one.queries)
            for one in sampled_maps(None, None, text, settings)
        ]

    every = drawn(maps=99, rows=99, groups=(2, 3))
    assert [one[:2] for one in every] == [(site.layer, head) for site, head in places]
    assert {one[2:] for one in every} == {(0, 1, 2, 3, 4, 5), (2, 3, 4, 5)}
    assert every[0][2:] == (0, 1, 2, 3, 4, 5)
    some = drawn(maps=2, rows=2)
    assert [len(one) for one in some] == [4, 4]
    assert some == sorted(some) == drawn(maps=2, rows=2)
    assert some not in (drawn(1, maps=2, rows=2), drawn(maps=2, rows=2, seed=1))
    assert drawn(maps=99, groups=(6,)) == []
    assert len(drawn(maps=99, groups=(5,))) == 12


def sampled(weights, **head):
    """A drawn map of two rows whose keys have values 0, 1 and 1."""
    values = torch.tensor([[0.0], [1.0], [1.0]], dtype=torch.float64)
    plain = {
        "attention": weights, "visible": None, "values": values, "projected": ProjectedValues.of(values), "bias": None,
        "softcap": None, "follows_logits": True, "bias_fixed": True, "group": 1, "d_k": 3, "scaling": 0.5,
    }  # fmt: skip
    runs = SimpleNamespace(effects=lambda rows: {"hidden": torch.arange(1.0, len(rows) + 1)})
    return SampledMap(
        {"text": 0}, SimpleNamespace(**plain | head), [0, 2], runs, torch.Generator().manual_seed(3)
    )


WEIGHTS = torch.tensor([[0.5, 0.25, 0.25], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]], dtype=torch.float64)


@pytest.mark.usefixtures("unchecked_shapes")
def test_agreement_of_rows_with_other_weights(monkeypatch):
    drawn = sampled(WEIGHTS)
    assert torch.equal(drawn.weights, WEIGHTS[[0, 2]])
    assert drawn.seen.all()
    assert drawn.free.tolist() == [True, True]
    assert drawn.floor == {"hidden": ROUNDINGS}
    hidden = sampled(WEIGHTS, visible=torch.ones(3, 3, dtype=torch.bool).tril())
    assert hidden.free.tolist() == [False, True]
    assert hidden.seen.tolist() == [[True, False, False], [True, True, True]]
    monkeypatch.setattr(SampledMap, "explained", lambda self, weights: {"raw": weights})
    others = {"drawn": [WEIGHTS[[0, 2]], WEIGHTS[[1, 1]]], "parameters": [WEIGHTS[[1, 1]]]}
    rows = list(determinacy_rows(drawn, {"raw": drawn.weights}, others))
    assert [(row["query"], row["alternative"], row["explanation"]) for row in rows] == [
        (0, "drawn", "raw"), (2, "drawn", "raw"), (0, "parameters", "raw"), (2, "parameters", "raw"),
    ]  # fmt: skip
    assert [row["total_variation"] for row in rows] == pytest.approx([0.15, 0.4, 0.3, 0.8])
    alone = [
        float(self_agreement(drawn.weights, WEIGHTS[[1, 1]], drawn.seen)[row]) for row in (0, 1)
    ]
    assert [row["agreement"] for row in rows] == pytest.approx(
        [(1 + alone[0]) / 2, (1 + alone[1]) / 2, *alone]
    )
    [only, _] = determinacy_rows(hidden, {"raw": hidden.weights}, others)
    assert only["query"] == 2
    controls = list(control_rows(drawn, others))
    assert controls == [
        {"text": 0, "alternative": "drawn", "outcome": "hidden", "change": 2.0, "floor": float(ROUNDINGS)},
        {"text": 0, "alternative": "parameters", "outcome": "hidden", "change": 1.0, "floor": float(ROUNDINGS)},
    ]  # fmt: skip


@pytest.mark.usefixtures("unchecked_shapes")
def test_queries_and_keys_of_the_most_even_weights_are_made_where_they_fit(monkeypatch):
    found = SimpleNamespace(needed_d_k=2, queries=torch.ones(3, 2), keys=torch.full((3, 2), 2.0))
    monkeypatch.setattr(study, "maximum_entropy_alternative", lambda *_, **__: found)
    queries, keys = entropy_parameters(sampled(WEIGHTS))
    assert queries.tolist() == [[2.0, 2.0, 0.0]] * 3
    assert keys.tolist() == [[2.0, 2.0, 0.0]] * 3
    assert entropy_parameters(sampled(WEIGHTS, d_k=2))[1].shape == (3, 2)
    for head in (
        {"d_k": 1},
        {"softcap": 1.0},
        {"follows_logits": False},
        {"bias_fixed": False},
        {"group": 2},
    ):
        assert entropy_parameters(sampled(WEIGHTS, **head)) is None

    def fails(*_, **__):
        raise NumericalError("open")

    monkeypatch.setattr(study, "maximum_entropy_alternative", fails)
    assert entropy_parameters(sampled(WEIGHTS)) is None
