import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from identilens.measures.tokens.splits import keep_training_share, split_sentences, token_rows


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
    assert token_rows(torch.tensor(lengths), [3]).tolist() == [7, 8, 9]
    assert token_rows(lengths, []).tolist() == []


@pytest.mark.parametrize("offset", [-5, -3, -1, 0, 1, 2, 5])
def test_rows_with_a_neighbour_in_their_sentence(offset):
    lengths = [2, 1, 4, 3]
    sentence = [0, 0, 1, 2, 2, 2, 2, 3, 3, 3]
    expected = [
        r for r in range(10) if 0 <= r + offset < 10 and sentence[r + offset] == sentence[r]
    ]
    assert token_rows(lengths, range(4), offset=offset).tolist() == expected
