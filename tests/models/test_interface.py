"""What a call of attention says of its mask."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.heads import seeded
from identilens.models.eager import eager_attention_forward
from identilens.models.interface import AttentionCall, seen_keys


def call(module_is_causal, queries=3, **changes):
    module = nn.Module()
    module.is_causal = module_is_causal
    query, key = torch.zeros(1, 2, queries, 4), torch.zeros(1, 2, 3, 4)
    given = {"mask": None, "arguments": {}, "own": lambda *_, **__: None, **changes}
    return AttentionCall(0, module, query, key, key, eager=eager_attention_forward, **given)


@pytest.mark.parametrize(
    ("made", "everything"),
    [
        (call(True), False), (call(False), True), (call(True, queries=1), True),
        (call(True, arguments={"is_causal": False}), True), (call(False, arguments={"is_causal": True}), False),
        (call(True, own=eager_attention_forward), True),
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
        "arguments": {"scaling": 0.5}, "own": eager_attention_forward, "eager": eager_attention_forward,
    }  # fmt: skip
    return AttentionCall(0, nn.Module(), **{**given, **changes})


@pytest.mark.parametrize("texts", [[1, 2], [2, 0], [1]])
@pytest.mark.parametrize("shared", [False, True])
def test_some_texts_alone_have_their_own_rows_keys_masks_and_biases(texts, shared):
    batch = 1 if shared else 3
    mask, bias = drawn(batch, 1, 3, 4) > 0, drawn(batch, 2, 3, 4)
    whole = padded(mask=mask, arguments={"scaling": 0.5, "position_bias": bias})
    alone = whole.only(texts, 2, 3)
    assert torch.equal(alone.query, whole.query[texts][:, :, :2])
    assert torch.equal(alone.key, whole.key[texts][:, :, :3])
    assert torch.equal(alone.value, whole.value[texts][:, :, :3])
    own = [0] if shared else texts
    assert torch.equal(alone.mask, mask[own][..., :2, :3])
    assert torch.equal(alone.arguments["position_bias"], bias[own][..., :2, :3])
    assert alone.arguments["scaling"] == 0.5
    row = padded(mask=mask[..., :1, :]).only(texts, 2, 3)
    assert torch.equal(row.mask, mask[own][..., :1, :3])
    assert padded().only(texts, 2, 3).mask is None


def test_rows_of_a_call_have_their_own_masks_and_biases():
    mask, bias = torch.ones(3, 1, 3, 4).tril().bool(), drawn(3, 2, 3, 4)
    whole = padded(mask=mask, arguments={"scaling": 0.5, "position_bias": bias})
    rows, output, weights = whole.rows([2, 0]), *whole.attend()
    assert torch.equal(rows.mask, mask[:, :, [2, 0]])
    some_output, some_weights = rows.attend()
    assert_close(some_output, output[:, [2, 0]])
    assert_close(some_weights, weights[:, :, [2, 0]])
    assert_close(whole.rows(slice(1, 2)).attend()[1], weights[:, :, 1:2])
    assert torch.equal(whole.rows(slice(1, 2)).visible(), mask[:, 0, 1:2])
    assert not bool(weights[:, :, 0, 1:].any())
    same = whole.arguments | {"position_bias": bias[..., :1, :]}
    assert padded(arguments=same).rows([2]).arguments["position_bias"].shape == (3, 2, 1, 4)
    # Without a mask, rows of fused causal attention see the keys up to their own.
    fused = padded(own=lambda *_, **__: None, arguments={"is_causal": True})
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


def test_keys_are_repeated_for_eager_functions_that_take_no_groups():
    seen = []

    def eager(module, query, key, value, mask, **options):
        seen.append(key.shape[1])
        if key.shape[1] != query.shape[1]:
            raise RuntimeError("sizes")
        return eager_attention_forward(module, query, key, value, mask, **options)

    output, weights = padded(eager=eager, own=eager).attend()
    expected = padded().attend()
    assert seen == [1, 2]
    assert_close(output, expected[0])
    assert_close(weights, expected[1])

    def fails(*_, **__):
        raise RuntimeError("for another reason")

    with pytest.raises(RuntimeError, match="for another reason"):
        padded(eager=fails, key=drawn(3, 2, 4, 4), value=drawn(3, 2, 4, 5)).attend()


@pytest.mark.parametrize("late", [True, False])
def test_a_sink_scales_weights_where_it_is_applied_after_the_softmax(late):
    share = torch.tensor([0.25, 0.75])[None, :, None, None]

    def eager(module, query, key, value, mask, s_aux=None, **options):
        output, weights = eager_attention_forward(module, query, key, value, mask, **options)
        kept = weights if late else weights * share
        return output * share.transpose(1, 2), kept

    made = padded(eager=eager, arguments={"scaling": 0.5, "s_aux": torch.zeros(2)})
    output, weights = made.attend()
    values = made.value.repeat_interleave(2, 1)
    assert_close((weights @ values).transpose(1, 2), output, atol=1e-5, rtol=1e-4)
    assert_close(weights.sum(-1), share[..., 0].expand(3, 2, 3), atol=1e-5, rtol=1e-4)
    assert made.has_sink
    assert not padded().has_sink
    named = padded()
    named.module.register_parameter("sinks", nn.Parameter(torch.zeros(1)))
    assert named.has_sink


def test_eager_attention_by_hand():
    query, key, value = drawn(1, 2, 3, 4), drawn(1, 1, 4, 4), drawn(1, 1, 4, 5)
    bias, mask = drawn(1, 2, 3, 4), torch.zeros(1, 1, 3, 4)
    mask[..., 3] = -torch.inf
    output, weights = eager_attention_forward(
        nn.Module(), query, key, value, mask, 0.5, position_bias=bias
    )
    logits = 0.5 * query @ key.mT + bias + mask
    assert_close(weights, logits.softmax(-1))
    assert_close(output, (logits.softmax(-1) @ value).transpose(1, 2))
    module = nn.Module().train()
    torch.manual_seed(0)
    _, dropped = eager_attention_forward(module, query, key, value, None, 0.5, dropout=0.5)
    assert bool((dropped == 0).any())
    _, kept = eager_attention_forward(module.eval(), query, key, value, None, 0.5, dropout=0.5)
    assert not bool((kept == 0).any())
    half = eager_attention_forward(module, query.half(), key.half(), value.half(), None, 0.5)[1]
    assert half.dtype == torch.float16
    assert_close(half.float(), kept, atol=2e-3, rtol=0)
