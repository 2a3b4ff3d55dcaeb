"""What a call of attention says of its mask."""

import pytest
import torch
from torch import nn

from identilens.models.eager import eager_attention_forward
from identilens.models.interface import AttentionCall


def call(module_is_causal, queries=3, **changes):
    module = nn.Module()
    module.is_causal = module_is_causal
    query, key = torch.zeros(1, 2, queries, 4), torch.zeros(1, 2, 3, 4)
    given = {"mask": None, "arguments": {}, "own": lambda *_, **__: None, **changes}
    return AttentionCall(0, module, query, key, key, eager=eager_attention_forward, **given)


@pytest.mark.parametrize(
    ("made", "everything"),
    [
        (call(True), False),
        (call(False), True),
        (call(True, queries=1), True),
        (call(True, arguments={"is_causal": False}), True),
        (call(False, arguments={"is_causal": True}), False),
        (call(True, own=eager_attention_forward), True),
        (call(False, mask=torch.ones(1, 1, 3, 3).tril().bool()), False),
        (call(True, mask=torch.ones(1, 1, 3, 3).bool()), True),
    ],
)
def test_without_a_mask_only_fused_attention_of_a_causal_module_hides_keys(made, everything):
    assert made.sees_everything() == everything
