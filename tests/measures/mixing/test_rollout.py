"""Attention rollout by hand."""

import torch
from torch.testing import assert_close

from helpers.heads import seeded, uniforms
from identilens.measures.mixing import alti_contributions
from identilens.measures.mixing.alti import alti_rollout
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads, norm_weights


def test_two_layers_by_hand():
    first = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    second = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    found = attention_rollout(torch.stack([first, second]))
    assert_close(found[0], torch.tensor([[0.75, 0.25], [0.0, 1.0]]))
    assert_close(found[1], torch.tensor([[0.375, 0.625], [0.375, 0.625]]))


def test_raw_weights_are_their_plain_mean():
    generator = seeded(1)
    weights = uniforms(generator, 5, 6, 6).softmax(-1)
    assert_close(mean_over_heads(weights), weights.mean(0))


def test_negative_weights_count_by_size_and_do_not_cancel():
    weights = torch.tensor([[[0.6, -0.2], [0.3, -0.3]], [[-0.6, 0.2], [0.0, 0.0]]])
    assert_close(mean_over_heads(weights), torch.tensor([[0.75, 0.25], [0.5, 0.5]]))


def test_a_query_without_effective_attention_keeps_its_own_token():
    weights = torch.zeros(2, 3, 3)
    assert_close(mean_over_heads(weights), torch.eye(3))
    assert_close(attention_rollout(mean_over_heads(weights)[None])[0], torch.eye(3))


def test_a_row_that_no_part_brings_nearer_is_even_over_the_parts_there_are():
    parts, output = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]), torch.tensor([0.2, -0.1])
    assert alti_contributions(parts, output).tolist() == [0.5, 0.5, 0.0]


def test_parts_share_by_how_much_nearer_each_brings_the_output():
    """Of ‖y‖₁ = 6 the parts take 3, 2 and 1, and the last leads away; scaled parts share alike."""
    parts = torch.tensor([[3.0, 0.0], [1.0, 1.0], [0.0, 3.0], [0.0, -2.0]])
    both = torch.stack([parts, 5 * parts])
    found = alti_contributions(both, both.sum(-2))
    assert_close(found, torch.tensor([[3 / 6, 2 / 6, 1 / 6, 0.0]] * 2))


def test_alti_of_all_layers_is_their_product():
    layers = torch.rand(3, 4, 4, generator=seeded()).softmax(-1)
    rolled = alti_rollout(layers)
    assert torch.equal(rolled[0], layers[0])
    assert torch.allclose(rolled[2], layers[2] @ layers[1] @ layers[0])


def test_norms_are_those_of_what_the_heads_pass_on_together():
    generator = seeded()
    weights = torch.rand(2, 3, 4, generator=generator)
    values = torch.randn(2, 4, 5, generator=generator)
    expected = torch.einsum("hqk,hkd->qkd", weights, values).norm(dim=-1)
    assert_close(norm_weights(weights, values), expected)
