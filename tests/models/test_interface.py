"""What a call of attention says of its mask."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from helpers.heads import seeded
from identilens.models.eager import eager_attention_forward
from identilens.models.following.follower import multi_head_attention
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall, seen_keys


def call(module_is_causal, queries=3, **changes):
    module = nn.Module()
    module.is_causal = module_is_causal
    query, key = torch.zeros(1, 2, queries, 4), torch.zeros(1, 2, 3, 4)
    given = {"mask": None, "arguments": {}, "original": lambda *_, **__: None, **changes}
    return AttentionCall(0, module, query, key, key, eager=eager_attention_forward, **given)


@pytest.mark.parametrize(
    ("made", "everything"),
    [
        (call(True), False), (call(False), True), (call(True, queries=1), True),
        (call(True, arguments={"is_causal": False}), True), (call(False, arguments={"is_causal": True}), False),
        (call(True, original=eager_attention_forward), True),
        (call(False, mask=torch.ones(1, 1, 3, 3).tril().bool()), False),
        (call(True, mask=torch.ones(1, 1, 3, 3).bool()), True),
    ],
)  # fmt: skip
def test_without_a_mask_only_fused_attention_of_a_causal_module_hides_keys(made, everything):
    seen = made.visible()
    assert (seen is None or bool(seen.all())) == everything


def drawn(*shape):
    return torch.randn(*shape, generator=seeded(sum(shape)))


def padded(**changes):
    """A call of three texts, three queries and four keys, with two heads that share one key."""
    given = {
        "query": drawn(3, 2, 3, 4), "key": drawn(3, 1, 4, 4), "value": drawn(3, 1, 4, 5), "mask": None,
        "arguments": {"scaling": 0.5}, "original": eager_attention_forward, "eager": eager_attention_forward,
    }  # fmt: skip
    return AttentionCall(0, nn.Module(), **{**given, **changes})


def test_rows_of_a_call_have_their_own_masks_and_biases():
    mask, bias = torch.ones(3, 1, 3, 4).tril().bool(), drawn(3, 2, 3, 4)
    whole = padded(mask=mask, arguments={"scaling": 0.5, "position_bias": bias})
    output, weights = whole.attend()
    for some in ([2, 0], slice(1, 2)):
        rows = whole.rows(some)
        assert torch.equal(rows.visible(), mask[:, 0, some])
        some_output, some_weights = rows.attend()
        assert_close(some_output, output[:, some])
        assert_close(some_weights, weights[:, :, some])
    assert not bool(weights[:, :, 0, 1:].any())
    same = whole.arguments | {"position_bias": bias[..., :1, :]}
    assert padded(arguments=same).rows([2]).arguments["position_bias"].shape == (3, 2, 1, 4)
    # Without a mask, rows of fused causal attention see the keys up to their own.
    fused = padded(original=lambda *_, **__: None, arguments={"is_causal": True})
    assert fused.rows([2, 0]).mask[0, 0].tolist() == [[True] * 3 + [False], [True] + [False] * 3]
    longer = padded(mask=torch.ones(1, 1, 3, 9).bool())
    assert longer.visible().shape == (3, 3, 4)


def test_terms_of_a_mask_that_hide_nothing_are_a_bias():
    least = torch.finfo(torch.float32).min
    mask = torch.zeros(1, 1, 3, 4)
    mask[..., 3] = least
    bias = drawn(1, 2, 3, 4)
    assert padded().bias() is None
    assert padded(mask=mask).bias() is None
    assert torch.equal(padded(mask=mask, arguments={"position_bias": bias}).bias(), bias)
    assert torch.equal(padded(mask=mask > -1, arguments={"position_bias": bias}).bias(), bias)
    mask[..., 0, 1] = -2.0
    finite = torch.zeros(1, 1, 3, 4)
    finite[..., 0, 1] = -2.0
    assert torch.equal(padded(mask=mask).bias(), finite)
    both = padded(mask=mask, arguments={"position_bias": bias}).bias()
    assert torch.equal(both, bias + finite)
    assert (
        seen_keys(torch.tensor([0.0, -5.0, least / 4, least / 2, least])).tolist()
        == [True] * 3 + [False] * 2
    )


def test_a_captured_layer_knows_that_scaling(unchecked_shapes):
    """Sizes that all differ: 2 heads, 5 queries, 7 keys, d_k = 3, d_v = 4."""
    query, key, value = drawn(1, 2, 5, 3), drawn(1, 2, 7, 3), drawn(1, 2, 7, 4)
    made = padded(
        query=query,
        key=key,
        value=value,
        arguments={"is_causal": False},
        original=sdpa_attention_forward,
    )
    weights = torch.softmax(query @ key.mT / 3**0.5, -1)
    layer = CapturedLayer.of(made, None, weights=False)
    assert layer.scaling == pytest.approx(3**-0.5)
    assert_close(layer.head(1).recomputed.float(), weights[0, 1])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("separate", [True, False])
@pytest.mark.parametrize("masked", ["not", "bool", "heads"])
@torch.no_grad()
def test_the_output_is_that_of_torch(bias, separate, masked):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, bias=bias, kdim=6 if separate else 8).double()
    query, key, value = (torch.randn(4, 3, size).double() for size in (8, module.kdim, 8))
    mask = {
        "not": None,
        "bool": ~torch.ones(4, 4).tril().bool(),
        "heads": torch.randn(6, 4, 4).double(),
    }[masked]
    names = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
    apart = {name: getattr(module, name) for name in names} if separate else {}
    arguments = (
        query, key, value, 8, 2, module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0,
        module.out_proj.weight, module.out_proj.bias,
    )  # fmt: skip
    options = {"attn_mask": mask, "use_separate_proj_weight": separate, **apart}
    linear = {id(module.out_proj.weight): module.out_proj}
    found, weights = multi_head_attention(linear, *arguments, **options)
    expected, known = nn.functional.multi_head_attention_forward(*arguments, **options)
    assert_close(found, expected)
    assert_close(weights, known)
