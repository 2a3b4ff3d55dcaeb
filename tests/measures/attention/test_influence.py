"""Influence of keys against plain loops over keys and against removing them, on known and on random heads."""

import pytest
import torch

from helpers.heads import causal, doubles, drawn
from identilens.linalg import ProjectedValues
from identilens.measures.attention import (
    contribution_weights,
    norm_share,
    removal_effect,
)

N, D_V, D_MODEL = 11, 4, 9


def weights_of(kind, heads=()):
    if kind == "one key":
        return torch.ones(*heads, 1, 1).double()
    logits = drawn(*heads, N, N, seed=3)
    if kind == "near uniform":
        logits = 1e-6 * logits
    if kind == "near one-hot":
        logits = logits + 30 * torch.eye(N)
    if kind == "causal":
        logits = logits.masked_fill(~causal(N), -torch.inf)
    return logits.softmax(-1)


def removed(weights, T, query, key):
    """The change of the output when a key is hidden and the softmax taken anew."""
    seen = weights[query].clone()
    seen[key] = 0
    return torch.linalg.vector_norm(seen / seen.sum() @ T - weights[query] @ T)


@pytest.mark.parametrize("kind", ["full", "near uniform", "near one-hot", "causal", "one key"])
def test_every_entry_is_what_its_definition_says(kind):
    weights = weights_of(kind)
    keys = weights.shape[-1]
    values, W_O = drawn(keys, D_V), drawn(D_V, D_MODEL, seed=1)
    T = values @ W_O
    for given in (T, ProjectedValues.of(values, W_O)):
        shares, contributions = norm_share(weights, given), contribution_weights(weights, given)
        effects, relative = (
            removal_effect(weights, given),
            removal_effect(weights, given, relative=True),
        )
        for query in range(keys):
            output = weights[query] @ T
            parts = [weights[query, key] * T[key] for key in range(keys)]
            lengths = torch.stack([part.norm() for part in parts])
            assert shares[query].tolist() == pytest.approx(
                (lengths / lengths.sum()).tolist(), rel=1e-10
            )
            along = [float(part @ output / (output @ output)) for part in parts]
            assert contributions[query].tolist() == pytest.approx(along, rel=1e-9, abs=1e-12)
            expected = [float(removed(weights, T, query, key)) for key in range(keys)]
            assert effects[query].tolist() == pytest.approx(
                expected, rel=1e-6, abs=1e-12, nan_ok=True
            )
            assert (relative[query] * output.norm()).tolist() == pytest.approx(
                expected, rel=1e-6, abs=1e-12, nan_ok=True
            )
        assert torch.allclose(contributions.sum(-1), torch.ones(keys).double())
        hidden = weights == 0
        for found in (shares, contributions, effects, relative):
            assert (found[hidden] == 0).all()


def test_removing_all_but_nothing_is_undefined_and_only_there():
    effects = removal_effect(weights_of("causal"), drawn(N, D_V))
    assert effects[0, 0].isnan(), "the first row of a decoder sees one key"
    assert effects.isnan().sum() == 1
    one_hot = removal_effect(torch.eye(4).double(), drawn(4, D_V))
    assert one_hot.diagonal().isnan().all()
    assert (one_hot[~torch.eye(4, dtype=torch.bool)] == 0).all()


def test_a_weight_just_below_one_keeps_its_digits():
    T, rest = drawn(3, D_V), 1e-14
    weights = doubles([[1.0, 0.25 * rest, 0.75 * rest]])
    left = torch.linalg.vector_norm(0.25 * T[1] + 0.75 * T[2] - T[0])
    assert float(removal_effect(weights, T)[0, 0]) == pytest.approx(float(left), rel=1e-10)


def test_heads_of_a_group_share_values():
    weights, values = weights_of("full", heads=(6,)), drawn(2, N, D_V)
    W_O = drawn(6, D_V, D_MODEL, seed=2)
    for head in range(6):
        group = values[head // 3]
        for measure in (norm_share, contribution_weights, removal_effect):
            alone = measure(weights[head], ProjectedValues.of(group, W_O[head]))
            together = measure(weights, ProjectedValues.of(values.repeat_interleave(3, 0), W_O))[
                head
            ]
            assert torch.allclose(alone, together, rtol=1e-10)
    shared = ProjectedValues.of(values[:1])
    for measure in (norm_share, contribution_weights, removal_effect):
        assert torch.allclose(
            measure(weights, shared)[4], measure(weights[4], values[0]), rtol=1e-12
        )


def test_zero_parts_and_outputs():
    nothing = torch.zeros(3, 2).double()
    even = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    assert (norm_share(even, nothing) == 0).all()
    assert (contribution_weights(even, nothing) == 0).all()
    opposite = doubles([[1.0, 0.0], [-1.0, 0.0]])
    half = doubles([[0.5, 0.5]])
    assert (contribution_weights(half, opposite) == 0).all()
    assert removal_effect(half, opposite).tolist() == [[1.0, 1.0]]
    assert removal_effect(half, opposite, relative=True).isinf().all()
