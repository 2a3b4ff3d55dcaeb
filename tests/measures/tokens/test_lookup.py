import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.heads import drawn, seeded
from identilens.measures.tokens import lookup
from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.margins import Nearest, Noise


def plain(predicted, inputs, lengths, distance, offset=0, ids=None):
    """Token by token in float64; None where a token has no such neighbour."""
    credit, token_credit, chance, token_chance = [], [], [], []
    start = 0
    for n in lengths:
        for i in range(n):
            if not 0 <= i + offset < n:
                continue
            g, x = predicted[start + i].double(), inputs[start : start + n].double()
            far = (
                (x - g).norm(dim=1)
                if distance == "l2"
                else 1 - torch.cosine_similarity(x, g[None], eps=1e-300)
            )
            tied = (far - far.min() < 1e-9).double()
            credit.append(float(tied[i + offset] / tied.sum()))
            chance.append(1 / n)
            if ids is not None:
                same = (ids[start : start + n] == ids[start + i + offset]).double()
                token_credit.append(float((tied * same).sum() / tied.sum()))
                token_chance.append(float(same.mean()))
        start += n
    return credit, token_credit, chance, token_chance


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("offset", [0, -1, 2])
@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8),
    seed=st.integers(0, 1000),
    budget=st.integers(1, 400),
)
def test_agrees_with_a_search_token_by_token(distance, offset, lengths, seed, budget):
    if max(lengths) <= abs(offset):
        lengths = [*lengths, 4]
    generator = seeded(seed)
    n = sum(lengths)
    inputs = torch.randn(n, 3, generator=generator)
    predicted = inputs + torch.randn(n, 3, generator=generator)
    ids = torch.randint(3, (n,), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "BLOCK_ENTRIES", budget)
        found = look_up(predicted, inputs, lengths, distance=distance, offset=offset, token_ids=ids)
    credit, token_credit, chance, token_chance = plain(
        predicted, inputs, lengths, distance, offset, ids
    )
    assert found.token_rate == pytest.approx(sum(token_credit) / len(credit))
    assert found.rate == pytest.approx(sum(credit) / len(credit))
    assert found.chance == pytest.approx(sum(chance) / len(chance))
    assert found.token_chance == pytest.approx(sum(token_chance) / len(chance))
    assert found.tokens == len(credit)
    assert found.sentences == sum(size > abs(offset) for size in lengths)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_duplicates_share_the_credit(distance):
    inputs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    ids = torch.tensor([7, 7, 8])
    found = look_up(inputs, inputs, [3], distance=distance, token_ids=ids)
    assert found.rate == pytest.approx(2 / 3)
    assert found.token_rate == 1.0
    assert found.token_chance == pytest.approx((2 + 2 + 1) / 9)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
def test_wide_duplicates_tie_in_float32(distance):
    vectors = torch.randn(3, 384, generator=seeded(1)) * 20
    inputs = vectors.repeat(17, 1)
    assert look_up(inputs, inputs, [51], distance=distance).rate == pytest.approx(1 / 17)


NOISES = (
    "bfloat16", "float16", "float32", "int8", "int4", "int8-channel", "int3-channel", "drop0.1",
)  # fmt: skip


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
    assert nearest.distance_to(token) == pytest.approx(float(others[token]))
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
