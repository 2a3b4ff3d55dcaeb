"""The error of an approximation: maximised where the maximum is known, and never below the sampled one."""

import pytest
import torch

from helpers.heads import normals, seeded
from identilens.lab.dyck.plain import PlainLayer, small_target
from identilens.lab.dyck.prune import approximation_error
from identilens.lab.dyck.pruning import Sizes, prune_to, random_transformer

QUICK = {"inputs": 50, "length": 3, "starts": 6, "steps": 80}


def drawn(*shape, seed=0):
    return normals(seeded(seed), *shape)


def unmixed(inner, outer):
    """A layer without attention: outer · relu(inner · x)."""
    none = torch.zeros(inner.shape[1], inner.shape[1]).double()
    return [PlainLayer(none, none, none, (inner, outer))]


def linear(weight):
    """A layer that is a linear map."""
    identity = torch.eye(weight.shape[1]).double()
    return unmixed(torch.cat([identity, -identity]), torch.cat([weight, -weight], 1))


def test_the_largest_error_of_a_linear_map_is_its_spectral_norm():
    weight = drawn(8, 8)
    found = approximation_error(linear(weight), linear(torch.zeros_like(weight)), **QUICK)
    known = float(torch.linalg.matrix_norm(weight, 2))
    assert found.sampled < 0.95 * known
    assert found.maximised == pytest.approx(known, rel=1e-4)
    assert found.maximised <= known * (1 + 1e-12)


def test_the_largest_error_of_a_single_relu():
    inner, outer = drawn(1, 8), drawn(8, 1, seed=1)
    found = approximation_error(
        unmixed(inner, outer), unmixed(inner, torch.zeros_like(outer)), **QUICK
    )
    known = float(inner.norm() * outer.norm())
    assert found.sampled < 0.95 * known
    assert found.maximised == pytest.approx(known, rel=1e-4)
    assert found.maximised <= known * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("starts", "steps"), [(1, 1), (3, 5)])
def test_the_maximised_error_is_never_below_the_sampled_one(seed, starts, steps):
    target, sizes = small_target(size=2, key_size=2, width=3, seed=seed), Sizes(4, 2, 3)
    pruned = prune_to(target, random_transformer(sizes, 4, seed), sizes)
    found = approximation_error(target, pruned, inputs=60, starts=starts, steps=steps)
    assert found.maximised >= found.sampled > 0
    assert found == approximation_error(target, pruned, inputs=60, starts=starts, steps=steps)
    assert approximation_error(target, target, **QUICK).maximised == 0
