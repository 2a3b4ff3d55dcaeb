"""Jacobian norms against reverse mode and finite differences; the sketch against its own promises."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import normals, seeded
from helpers.zoo import build, example, ids
from identilens.errors import InputError, NumericalError
from identilens.measures.mixing import contributions
from identilens.models import Lens
from identilens.models.derivative.jacobian import (
    check_probes,
    jacobian_norms,
    orthonormal_probes,
    output_norms,
)
from identilens.models.linearise import HiddenMap, tangents_at_once

# Families that stay in double precision throughout; the others compute norms or softmax in single.
DOUBLE = ["albert", "bart", "bert", "distilbert", "electra", "gpt2", "marian", "roberta", "whisper"]
SINGLE = ["gemma2", "llama", "modernbert", "opt", "t5", "vit"]


def hidden_map(family, source="encoder", length=None):
    lens = Lens(build(family).double())
    inputs = example(family) if length is None else [ids(length)]
    if isinstance(inputs, dict):
        inputs = {
            name: value.double() if value.is_floating_point() else value
            for name, value in inputs.items()
        }
    return HiddenMap(lens, lens.read(inputs)[0], source)


def reverse_norms(function, inputs):
    """Squared norms by reverse mode, one pass for each output coordinate."""
    return [
        jacobian.square().sum((1, 3)).detach() for jacobian in torch.func.jacrev(function)(inputs)
    ]


def agrees(found, expected, tolerance):
    for one, other in zip(found, expected, strict=True):
        assert float((one.squares - other).abs().max()) <= tolerance * float(other.max())


@pytest.mark.parametrize("family", DOUBLE + SINGLE)
def test_exact_agrees_with_reverse_mode(family):
    # One pass per output coordinate of both sequences of an encoder-decoder.
    for source in (
        ("encoder", "decoder") if family in ("bart", "marian", "whisper", "t5") else ("encoder",)
    ):
        hidden = hidden_map(family, source)
        found = jacobian_norms(hidden, hidden.inputs, method="exact")
        tolerance = 1e-8 if family in DOUBLE else 1e-5
        agrees(found, reverse_norms(hidden, hidden.inputs), tolerance)
        assert all(not norms.variances.any() for norms in found)


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_exact_agrees_with_finite_differences(family):
    hidden = hidden_map(family, length=5)
    step, x = 1e-5, hidden.inputs
    expected = [torch.zeros(5, 5).double() for _ in hidden.outputs]
    with torch.no_grad():
        for token in range(5):
            for coordinate in range(x.shape[1]):
                change = torch.zeros_like(x)
                change[token, coordinate] = step
                for total, up, down in zip(
                    expected, hidden(x + change), hidden(x - change), strict=True
                ):
                    total[:, token] += ((up - down) / (2 * step)).square().sum(-1)
    agrees(jacobian_norms(hidden, x, method="exact"), expected, 1e-7)


def test_as_many_probes_as_dimensions_are_exact():
    hidden = hidden_map("bert", length=6)
    exact = jacobian_norms(hidden, hidden.inputs, method="exact")
    full = jacobian_norms(hidden, hidden.inputs, probes=32)
    for one, other in zip(full, exact, strict=True):
        torch.testing.assert_close(one.squares, other.squares, rtol=1e-10, atol=1e-14)
        assert not one.variances.any()


def linear(n=4, width=24, seed=0, low_rank=None):
    """A linear function with a known Jacobian: [hidden, out, input, in]."""
    generator = seeded(seed)
    blocks = normals(generator, n, width, n, width)
    if low_rank is not None:
        basis = normals(generator, n, low_rank, width)
        mixed = normals(generator, n, width, n, low_rank)
        blocks = torch.einsum("jonr,nri->joni", mixed, basis) + 0.02 * blocks
    inputs = torch.zeros(n, width).double()
    return (
        (lambda x: (torch.einsum("joni,ni->jo", blocks, x),)),
        inputs,
        blocks.square().sum((1, 3)),
    )


@pytest.mark.parametrize("probes", [6, 16])
def test_sketch_is_unbiased_and_its_error_is_truthful(probes):
    function, inputs, truth = linear(low_rank=6)
    runs = [jacobian_norms(function, inputs, probes=probes, seed=seed)[0] for seed in range(80)]
    squares = torch.stack([run.squares for run in runs])
    variances = torch.stack([run.variances for run in runs])
    spread = squares.std(0)
    assert bool(((squares.mean(0) - truth).abs() < 4.5 * spread / 80**0.5).all())
    # Reported variances are unbiased: their mean is the variance seen.
    ratio = variances.mean(0) / squares.var(0)
    assert 0.85 < float(ratio.mean()) < 1.15
    assert bool(((ratio > 0.4) & (ratio < 2)).all())
    within = ((squares - truth).abs() <= 2 * variances.sqrt()).float().mean()
    # Of few random probes (here 4 to 16) the error estimate is heavy-tailed: Student's t, not normal.
    assert float(within) > (0.78 if probes == 6 else 0.88)


@pytest.mark.parametrize("method", ["exact", "sketch"])
def test_numbers_do_not_depend_on_how_many_tangents_go_together(method):
    hidden = hidden_map("bert")
    options = {"method": method, "probes": 12}
    alone, *others = (
        jacobian_norms(hidden, hidden.inputs, at_once=at_once, **options) for at_once in (1, 7, 999)
    )
    for other in others:
        for one, two in zip(alone, other, strict=True):
            assert_close(one.squares, two.squares, rtol=1e-9, atol=1e-14)
            assert_close(one.variances, two.variances, rtol=1e-7, atol=1e-14)


def test_fewer_tangents_of_longer_texts_go_together():
    short, long = (hidden_map("bert", length=length) for length in (4, 64))
    assert short.at_once > long.at_once > long.passes_at_once > 0
    lens = Lens(build("bert"))
    [item] = lens.read([ids(4)])
    assert tangents_at_once(lens, item, 10**9, 0) == 1


@pytest.mark.parametrize("family", ["bert", "gpt2"])
@pytest.mark.parametrize("token", [0, 4])
def test_as_many_probes_as_dimensions_are_exact_output_norms(family, token):
    hidden = hidden_map(family, length=6)
    expected = jacobian_norms(hidden, hidden.inputs, method="exact")[-1].squares[token]
    found = output_norms(
        lambda x: hidden(x)[-1], hidden.inputs, token, probes=hidden.inputs.shape[1]
    )
    assert_close(found.squares[0], expected, rtol=1e-9, atol=1e-14)
    assert not found.variances.any()


def test_fewer_probes_are_unbiased_and_know_their_variance():
    jacobian = normals(seeded(), 5, 24, 4, 16)
    expected = jacobian[2].square().sum((0, 2))
    inputs = torch.zeros(4, 16).double()
    runs = [
        output_norms(
            lambda x: torch.einsum("jaib,ib->ja", jacobian, x), inputs, 2, probes=8, seed=seed
        )
        for seed in range(200)
    ]
    squares = torch.cat([run.squares for run in runs])
    variances = torch.cat([run.variances for run in runs])
    # One probe serves all inputs: errors of shares are those of runs, not of independent norms.
    shares = [contributions(run.squares, run.variances, 7, run.deviations) for run in runs]
    spread = torch.cat([one.shares for one in shares]).std(0)
    errors = torch.cat([one.errors for one in shares])
    assert_close(errors.square().mean(0).sqrt(), spread, rtol=0.2, atol=0)
    # Of the mean of 200 runs, 4 standard errors.
    assert bool(((squares.mean(0) - expected).abs() <= 4 * squares.std(0) / len(runs) ** 0.5).all())
    assert_close(variances.mean(0), squares.var(0), rtol=0.35, atol=0)


def test_probes_are_orthonormal_for_each_token():
    probes = orthonormal_probes(normals(seeded(), 5, 6), 4, 0)
    assert_close(probes.mT @ probes, torch.eye(4).double().expand(5, 4, 4))
    assert_close(probes, orthonormal_probes(normals(seeded(), 5, 6), 4, 0), rtol=0, atol=0)
    assert not torch.equal(probes[0], probes[1])


def test_derivatives_that_are_not_finite_are_refused():
    for method in ("exact", "sketch"):
        with pytest.raises(NumericalError, match="derivative"):
            jacobian_norms(
                lambda given: (given * torch.nan,), torch.ones(3, 4), method=method, probes=2
            )


def test_numbers_of_probes_by_their_bounds():
    for probes in (2, 6):
        check_probes(probes, 6)
    for probes in (1, 7):
        with pytest.raises(InputError, match=f"expected 2 to 6 probes, .* got {probes}"):
            check_probes(probes, 6)
