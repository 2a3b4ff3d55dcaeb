"""The multi-head attention of torch, step by step, equals torch's own."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from identilens.models.following.follower import multi_head_attention


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
    found, weights = multi_head_attention(
        {id(module.out_proj.weight): module.out_proj}, *arguments, **options
    )
    expected, expected_weights = nn.functional.multi_head_attention_forward(*arguments, **options)
    assert_close(found, expected)
    assert_close(weights, expected_weights)
