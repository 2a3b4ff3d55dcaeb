import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.heads import seeded
from identilens.measures.tokens import lookup
from identilens.measures.tokens.lookup import look_up


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
