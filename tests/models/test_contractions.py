"""Products of two tensors as matrices, and the same products with their operands exchanged."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import seeded
from identilens.models.following.contractions import contraction


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
def test_a_turned_product_is_the_transposed_one(lead):
    generator = seeded()
    left, right = (torch.randn(*lead, *size, generator=generator) for size in ((4, 5), (5, 6)))
    result = left @ right
    product = contraction("matmul", [left, right], {}, result)
    assert torch.equal(product.seen(result), result)
    assert torch.equal(product.turned.seen(result), result.mT)
    assert torch.equal(product.turned.given(result.mT), result)
    assert torch.equal(product.turned.turned.seen(result), result)


def drawn(*shape):
    return torch.randn(*shape, generator=seeded(sum(shape)))


LEFT, RIGHT, SUM = drawn(2, 4, 5), drawn(2, 5, 6), drawn(2, 4, 6)
PRODUCTS = {
    "matmul": ([LEFT, RIGHT], {}), "__matmul__": ([LEFT, RIGHT], {}), "bmm": ([LEFT], {"mat2": RIGHT}),
    "baddbmm": ([SUM, LEFT, RIGHT], {"beta": 0, "alpha": 0.5}),
}  # fmt: skip


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_by_name_have_left_and_right_factors(name):
    args, options = PRODUCTS[name]
    result = LEFT @ RIGHT * options.get("alpha", 1.0)
    product = contraction(name, args, options, result)
    assert_close(product.left @ product.right * product.factor, result)
    assert torch.equal(product.left, LEFT)
    assert product.factor == options.get("alpha", 1.0)
    assert product.turned.factor == product.factor
    assert torch.equal(product.given(product.seen(result)), result)


EINSUMS = {
    "bnk,bkd->bnd": (LEFT, RIGHT), "bkn,bkd->bnd": (LEFT.mT, RIGHT), "bnk, bdk -> bdn": (LEFT, RIGHT.mT),
    "bnhk,bmhk->bhnm": (drawn(2, 4, 3, 5), drawn(2, 6, 3, 5)), "bhnk,hkd->nbhd": (drawn(2, 3, 4, 5), drawn(3, 5, 6)),
    "nk,bkd->bnd": (LEFT[0], RIGHT), "abnk,kd->abnd": (drawn(2, 3, 4, 5), RIGHT[0]),
}  # fmt: skip


@pytest.mark.parametrize("form", EINSUMS)
@pytest.mark.parametrize("listed", [False, True])
def test_sums_over_one_axis_are_products(form, listed):
    first, second = EINSUMS[form]
    result = torch.einsum(form, first, second)
    product = contraction(
        "einsum", [form, [first, second]] if listed else [form, first, second], {}, result
    )
    assert_close(product.left @ product.right, product.seen(result))
    assert_close(product.given(product.left @ product.right), result)
    turned = product.turned
    assert_close(turned.left @ turned.right, turned.seen(result))
    assert product.first is first
    assert product.second is second


@pytest.mark.parametrize(
    ("name", "args", "result"),
    [
        ("einsum", ["bnk,bkd", LEFT, RIGHT], LEFT @ RIGHT),
        ("einsum", ["...nk,...kd->...nd", LEFT, RIGHT], LEFT @ RIGHT),
        ("einsum", ["bnk,bnk->bnk", LEFT, LEFT], LEFT),
        ("einsum", ["bnk,bnk->bn", LEFT, LEFT], LEFT[..., 0]),
        ("einsum", ["bnk,bkd->nd", LEFT, RIGHT], LEFT[0]),
        ("einsum", ["bnk,kd->nd", LEFT, RIGHT[0]], LEFT[0]),
        ("einsum", ["bnk->bn", LEFT], LEFT[..., 0]),
        ("einsum", [LEFT, RIGHT, LEFT], LEFT),
        ("matmul", [LEFT, RIGHT[0, :, 0]], LEFT[..., 0]),
        ("matmul", [LEFT], LEFT),
        ("matmul", [LEFT, RIGHT], None),
    ],
)  # fmt: skip
def test_other_forms_are_no_products_of_two_matrices(name, args, result):
    assert contraction(name, args, {}, result) is None
