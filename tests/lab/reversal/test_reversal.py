import pytest
import torch
from torch.testing import assert_close

from identilens.lab.reversal.settings import ReversalSettings
from identilens.lab.reversal.study import AttentionReverser, reversal_data, train_reversal
from identilens.lab.reversal.task import antidiagonal_match, best_range, threshold_sweep

N = 6
J = torch.eye(N).double().flip(-1)
SMALL = ReversalSettings(
    length=5,
    vocabulary=4,
    hidden=24,
    train=1500,
    held_out=200,
    batch_size=50,
    epochs=25,
    learning_rate=1e-2,
    inputs=20,
)


def test_matches_by_hand():
    itself = {"score": pytest.approx(1), "support": 1, "mass": 1, "empty_rows": 0, "shift": 0}
    assert antidiagonal_match(J) == itself
    uniform = antidiagonal_match(torch.full((N, N), 1 / N))
    assert uniform["score"] == pytest.approx(N**-0.5)
    assert uniform["support"] == pytest.approx(2 * N / (N * N + N))
    half = J.clone()
    half[:3] = 0
    found = antidiagonal_match(half)
    assert found["score"] == pytest.approx(0.5**0.5)
    assert found["support"] == pytest.approx(2 * 3 / (3 + N))
    assert (found["mass"], found["empty_rows"]) == (0.5, 3)
    assert antidiagonal_match(torch.zeros(N, N))["score"] == 0
    identity = antidiagonal_match(torch.eye(N))
    assert identity["score"] == 0


def test_the_sweep_finds_the_threshold_by_construction():
    """0.51 on the antidiagonal and 0.11 elsewhere: nothing is cut up to 0.11, everything above 0.51."""
    A = (0.4 * J + 0.11).expand(7, N, N)
    sweep = threshold_sweep(A)
    score, first, last = best_range(sweep)
    assert score == pytest.approx(1)
    assert (first, last) == (0.12, 0.5)
    assert sweep.filter(sweep["threshold"] > 0.51)["score"].max() == 0
    assert sweep["score"][0] == pytest.approx(0.51 / (0.51**2 + 5 * 0.11**2) ** 0.5)
    assert sweep["kept"].to_list() == sorted(sweep["kept"].to_list(), reverse=True)
    total = threshold_sweep(A, [0.4, 0.7, 0.8, 3.5, 3.6], scale="sum")
    assert [round(value, 6) for value in total["support"]] == [
        round(2 * N / (N * N + N), 6), round(2 * N / (N * N + N), 6), 1, 1, 0,
    ]  # fmt: skip


def test_the_reverser_sees_only_what_was_written():
    torch.manual_seed(0)
    model = AttentionReverser(4, 8)
    source = reversal_data(SMALL)[2][:3]
    logits = model(source, source.flip(-1))
    weights = model.cross_attention(source)[0]
    assert_close(weights.sum(-1), torch.ones(1, 3, 5).double(), atol=1e-6, rtol=0)
    changed = source.flip(-1).clone()
    changed[:, -1] = (changed[:, -1] + 1) % 4
    assert_close(model(source, changed), logits)
    changed[:, 0] = (changed[:, 0] + 1) % 4
    assert not torch.allclose(model(source, changed), logits)


@pytest.fixture(scope="module")
def lstm():
    return train_reversal(settings=SMALL)


def test_the_lstm_learns_to_reverse_and_looks_along_the_antidiagonal(lstm):
    row = lstm.table.row(0, named=True)
    assert row["accuracy"] > 0.95
    assert row["written"] > 0.9
    assert lstm.weights.shape == (1, 20, 5, 5)
    assert_close(lstm.weights.sum(-1), torch.ones(1, 20, 5).double())
    assert best_range(lstm.best_sweep())[0] > 0.8
    assert lstm.course["epoch"].to_list() == list(range(1, len(lstm.course) + 1))
    assert len(lstm.sweep) == 2 * 2 * 51
    # Five encoder states against four tokens of the vocabulary.
    assert lstm.heads["nullity"].to_list() == [1.0]
    assert lstm.perturbations.is_empty()
