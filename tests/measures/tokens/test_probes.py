import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import seeded
from identilens.measures.tokens.probes import Probe
from identilens.measures.tokens.splits import keep_training_share, split_sentences, token_rows

D = 8
LENGTHS = [5, 9, 1, 7, 4, 8, 6, 1, 10, 9] * 12


@pytest.fixture(scope="module")
def inputs():
    return torch.randn(sum(LENGTHS), D, generator=seeded())


@pytest.fixture(scope="module")
def mapped(inputs):
    """An invertible, not orthogonal linear map of the inputs."""
    left, right = (torch.linalg.qr(torch.randn(D, D, generator=seeded(s)))[0] for s in (1, 2))
    return inputs @ (left * torch.linspace(0.3, 3, D)) @ right


@pytest.fixture(scope="module")
def parts():
    split = split_sentences(len(LENGTHS), folds=1)[0]
    return [
        token_rows(LENGTHS, part) for part in (split.train, split.validation, split.test)
    ], split.test


def probes(distance):
    return {
        "linear": Probe(distance, learning_rate=0.02, batch_size=128, patience=8, max_epochs=120),
        "mlp": Probe(
            distance,
            hidden_units=64,
            learning_rate=0.01,
            batch_size=128,
            patience=8,
            max_epochs=120,
        ),
    }


def fit_and_score(probe, hidden, inputs, parts):
    (train, validation, test), sentences = parts
    assert probe.fit(hidden[train], inputs[train], hidden[validation], inputs[validation]) is probe
    return probe.score(hidden[test], inputs[test], [LENGTHS[s] for s in sentences])


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_inverts_a_linear_map_exactly(kind, distance, inputs, mapped, parts):
    assert fit_and_score(probes(distance)[kind], mapped, inputs, parts) == 1.0
    *_, test = parts[0]
    naive = Probe(distance).score(mapped[test], inputs[test], [LENGTHS[s] for s in parts[1]])
    assert naive < 0.8


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("kind", ["linear", "mlp"])
def test_random_hidden_states_stay_at_chance(kind, distance, inputs, parts):
    hidden = torch.randn(inputs.shape, generator=seeded(9))
    probe = probes(distance)[kind]
    rate = fit_and_score(probe, hidden, inputs, parts)
    sentences = parts[1]
    tokens = sum(LENGTHS[s] for s in sentences)
    chance = len(sentences) / tokens
    # Four standard errors of a guess, tokens of one sentence being independent here.
    spread = (sum((1 - 1 / LENGTHS[s]) for s in sentences)) ** 0.5 / tokens
    assert abs(rate - chance) < 4 * spread


def test_trained_linear_l2_converges_to_the_closed_form(inputs, mapped, parts):
    (train, _, _), _ = parts
    noisy = (mapped + 0.5 * torch.randn(mapped.shape, generator=seeded(4)))[train].double()
    x = inputs[train].double()
    # Full batches, and the training tokens validate: what it converges to is the least training loss.
    trained = Probe("l2", learning_rate=0.01, batch_size=len(x), max_epochs=1000).fit(
        noisy, x, noisy, x
    )
    solved = torch.linalg.lstsq(noisy, x).solution
    least = float((noisy @ solved - x).square().mean())
    assert_close(trained.outcome_.parameters[0], solved, rtol=1e-3, atol=1e-4)
    assert least <= trained.outcome_.validation_loss * (1 + 1e-9)
    assert trained.outcome_.validation_loss == pytest.approx(least, rel=1e-6)


@settings(deadline=None)
@given(st.integers(3, 300), st.integers(1, 12), st.integers(0, 5))
def test_parts_have_no_sentence_in_common_and_cover_all(sentences, folds, seed):
    folds = min(folds, sentences)
    for split in split_sentences(sentences, folds=folds, seed=seed):
        together = [*split.train, *split.validation, *split.test]
        assert sorted(together) == list(range(sentences))
        assert min(len(split.train), len(split.validation), len(split.test)) >= 1


def test_ten_folds_of_mrpc_have_the_papers_shares():
    splits = split_sentences(408)
    assert [split.fold for split in splits] == list(range(10))
    for split in splits:
        assert (len(split.train), len(split.validation), len(split.test)) == (286, 61, 61)
    tested = torch.bincount(
        torch.tensor([s for split in splits for s in split.test]), minlength=408
    )
    assert set(tested.tolist()) == {1, 2}
    assert len({split.test for split in splits}) == 10


def test_more_folds_than_sentences():
    assert len({split.test for split in split_sentences(10, folds=10)}) == 10


def test_training_shares_are_nested_and_leave_the_rest():
    split = split_sentences(100, folds=1)[0]
    half, most = keep_training_share(split, 0.5), keep_training_share(split, 0.8)
    assert len(half.train) == 35
    assert set(half.train) < set(most.train) < set(split.train)
    assert keep_training_share(split, 1.0) == split
    assert (half.validation, half.test) == (split.validation, split.test)


def test_rows_of_chosen_sentences():
    lengths = [2, 1, 4, 3]
    assert token_rows(lengths, [2, 0]).tolist() == [3, 4, 5, 6, 0, 1]
    assert token_rows(lengths, []).tolist() == []


@pytest.mark.parametrize("offset", [-5, -3, -1, 0, 1, 2, 5])
def test_rows_with_a_neighbour_in_their_sentence(offset):
    lengths = [2, 1, 4, 3]
    sentence = [0, 0, 1, 2, 2, 2, 2, 3, 3, 3]
    expected = [
        r for r in range(10) if 0 <= r + offset < 10 and sentence[r + offset] == sentence[r]
    ]
    assert token_rows(lengths, range(4), offset=offset).tolist() == expected
