"""Margins of states and errors of noise, beside plain loops and many draws."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.heads import normals, seeded
from identilens.measures.tokens.margins import Nearest, Noise

NOISES = (
    "bfloat16", "float16", "float32", "int8", "int4", "int8-channel", "int3-channel", "drop0.1",
)  # fmt: skip


def drawn(*shape, seed=0):
    return normals(seeded(seed), *shape)


@given(st.integers(2, 40), st.integers(1, 6), st.integers(1, 17), st.integers(0, 99))
def test_the_nearest_are_those_of_a_loop_in_any_batches(count, width, size, seed):
    candidates, centres = drawn(count, width, seed=seed), drawn(3, width, seed=seed + 1)
    nearest = Nearest(centres, keep=3)
    order = torch.randperm(count, generator=seeded(seed))
    for ids in order.split(size):
        nearest.add(ids, candidates[ids])
    for number, centre in enumerate(centres):
        distances = (candidates - centre).norm(dim=1)
        kept = min(3, count)
        expected, ids = distances.sort()
        assert torch.allclose(nearest.distances[number, :kept], expected[:kept], atol=1e-9)
        assert nearest.ids[number, :kept].tolist() == ids[:kept].tolist()
    token = int(nearest.ids[0, 0])
    others = (candidates - centres[0]).norm(dim=1)
    assert nearest.own(token) == pytest.approx(float(others[token]))
    others[token] = torch.inf
    rival = nearest.rival(token)
    assert (rival.margin, rival.id) == (
        pytest.approx(float(others.min()) / 2),
        int(others.argmin()),
    )
    assert torch.allclose(rival.state, candidates[rival.id])
    apart = (candidates - candidates[token]).norm(dim=1)
    apart[token] = torch.inf
    assert nearest.separation() <= float(apart.min()) / 2 + 1e-9


def test_half_the_distance_from_the_nearest_is_exact_for_small_errors():
    candidates = drawn(60, 5)
    nearest = Nearest(candidates[7:8] + 1e-3 * drawn(1, 5), keep=8)
    nearest.add(torch.arange(60), candidates)
    others = (candidates - candidates[7]).norm(dim=1)
    others[7] = torch.inf
    assert nearest.separation() == pytest.approx(float(others.min()) / 2)


def test_a_single_candidate_has_no_rival():
    nearest = Nearest(torch.zeros(1, 2))
    nearest.add(torch.tensor([5]), torch.ones(1, 2))
    assert nearest.rival(5)[:2] == (float("inf"), -1)
    assert nearest.separation() == float("inf")


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_that_of_a_plain_loop(name):
    states, noise = drawn(6, 40).float(), Noise.read(name)
    found = noise.applied(states, seed=3)
    bits = int("".join(filter(str.isdigit, name)) or 0) if name.startswith("int") else 0
    for position in range(6):
        for place in range(40):
            number = float(states[position, place])
            if bits:
                of = states[:, place] if "channel" in name else states[position]
                step = float(of.double().abs().max()) / (2 ** (bits - 1) - 1)
                assert float(found[position, place]) == pytest.approx(round(number / step) * step)
            elif name.startswith("drop"):
                assert float(found[position, place]) in (0.0, number)
            else:
                assert float(found[position, place]) == float(
                    states[position, place].to(getattr(torch, name))
                )
    errors = noise.error(states, found, 100, 1e-3)
    assert torch.allclose(errors, (found - states.double()).norm(dim=1))
    if name.startswith("drop"):
        assert 0.02 < float((found == 0).double().mean()) < 0.2


def test_a_state_of_zeros_stays_as_it_is():
    for name in (*NOISES, "0.5"):
        assert not Noise.read(name).applied(torch.zeros(2, 4)).any()


def test_gaussian_noise_has_its_length_and_is_repeatable():
    noise, states = Noise.read(0.1), drawn(400, 64)
    found = noise.applied(states, seed=1)
    shares = (found - states).norm(dim=1) / states.norm(dim=1)
    assert float(shares.square().mean().sqrt()) == pytest.approx(0.1, rel=0.02)
    assert torch.equal(found, noise.applied(states, seed=1))
    assert not torch.equal(found, noise.applied(states, seed=2))


@pytest.mark.parametrize(("width", "rivals"), [(2, 200), (64, 20), (256, 4096)])
def test_gaussian_noise_spoils_decoding_no_more_often_than_stated(width, rivals):
    risk, states = 0.05, drawn(1, width)
    noise = Noise.read("0.3")
    radius = float(noise.error(states, states, rivals, risk))
    away = drawn(rivals, width, seed=1)
    others = states + 2 * radius * away / away.norm(dim=1, keepdim=True)
    moved = states + noise.deviation(states)[:, None] * drawn(4000, width, seed=2)
    wrong = (torch.cdist(moved, others).amin(1) < (moved - states).norm(dim=1)).double().mean()
    assert float(wrong) <= risk + 3 * (risk / 4000) ** 0.5
