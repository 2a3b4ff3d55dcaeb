"""Products of two tensors as matrices, and the same products with their operands exchanged."""

import pytest
import torch

from identilens.models.following.contractions import contraction


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_a_turned_product_is_the_transposed_one(lead):
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(*lead, *size, generator=generator) for size in ((4, 5), (5, 6)))
    result = left @ right
    product = contraction("matmul", [left, right], {}, result)
    assert torch.equal(product.seen(result), result)
    assert torch.equal(product.turned.seen(result), result.mT)
    assert torch.equal(product.turned.given(result.mT), result)
    assert torch.equal(product.turned.turned.seen(result), result)
