"""Attention with further columns equals the family's eager attention, on the short way and on every other."""

from unittest.mock import patch

import pytest
import torch

from helpers.zoo import build, example, ids
from identilens.models import Lens, fused
from identilens.models.interface import AttentionCall

SHORT = ("bert", "gpt2", "llama", "mistral")
OTHERS = ("gemma2", "gpt_oss", "t5")


def calls(family, implementation="sdpa", texts=None, dtype=torch.float32):
    """The attention calls of a model on two texts of different length."""
    model = build(family).to(dtype)
    model.set_attn_implementation(
        implementation if model._supports_sdpa and family != "gemma2" else "eager"
    )
    lens, found = Lens(model), []

    def note(call):
        found.append(call)
        return call.run()

    lens.run(lens.read(example(family) if texts is None else texts), note)
    return found


def compare(call, rows):
    generator = torch.Generator().manual_seed(0)
    size = (call.query.shape[0], call.query.shape[1], call.key.shape[2], 3)
    columns = torch.randn(size, generator=generator).to(
        torch.promote_types(call.query.dtype, torch.float32)
    )
    with patch.object(
        AttentionCall, "attend", autospec=True, side_effect=AttentionCall.attend
    ) as eager:
        output, weights, mixed = fused.attend_with(
            call, rows, columns, fused.Scratch(), causal=False
        )
    expected_output, expected = call.attend(rows)
    # Some families compute the softmax of float64 in float32.
    accuracy = 2e-2 if call.query.dtype == torch.bfloat16 else 2e-6
    for found, other in (
        (output, expected_output),
        (weights, expected),
        (mixed, expected.to(columns.dtype) @ columns),
    ):
        assert found.shape == other.shape
        torch.testing.assert_close(found, other, atol=accuracy, rtol=accuracy)
    own = {torch.float32: 2e-6, torch.float64: 1e-13, torch.bfloat16: 2e-2}[call.query.dtype]
    torch.testing.assert_close(output, call.run()[:, rows].to(output.dtype), atol=own, rtol=own)
    return not eager.called


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", SHORT)
@torch.no_grad()
def test_fused_calls_take_one_product(family, dtype):
    for call in calls(family, texts=[ids(9), ids(6, seed=1)], dtype=dtype):
        for text, length in ((0, 9), (1, 6)):
            alone = call.only([text], length, length)
            assert compare(alone, slice(None))
            assert compare(alone, slice(2, 5))


@pytest.mark.parametrize("family", OTHERS)
@torch.no_grad()
def test_other_calls_take_the_familys_attention(family):
    for call in calls(family, texts=None if family == "t5" else [ids(9)]):
        assert not compare(call, slice(None))
