"""Samples of Dyck languages: valid, and drawn by the stated law."""

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.brackets import is_valid, read_brackets
from helpers.heads import doubles, seeds
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.parsing import next_token_distribution, parse

languages = st.builds(
    Dyck,
    types=st.integers(1, 4),
    max_depth=st.integers(1, 6),
    open_probability=st.floats(0.05, 0.95),
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def probability(language, tokens):
    """Probability of a prefix by Definition 1, bracket by bracket."""
    found = parse(language, tokens[None])
    depth = torch.cat([torch.zeros(1, 1, dtype=torch.long), found.depth[:, :-1]], 1)
    top = torch.cat([torch.full((1, 1), -1), found.top_type[:, :-1]], 1)
    law = next_token_distribution(language, depth, top)[0]
    return float(law[torch.arange(len(tokens)), tokens].prod())


@given(languages, st.integers(1, 40), seeds)
@settings(max_examples=30, deadline=None)
def test_prefixes_are_prefixes(language, length, seed):
    tokens = language.sample_prefixes(8, length, seeded(seed))
    assert tokens.shape == (8, length)
    assert bool(is_valid(language, tokens).all())


@given(languages, st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_complete_words_are_complete(language, half, seed):
    tokens = language.sample_complete(8, 2 * half, seeded(seed))
    assert tokens.shape == (8, 2 * half)
    assert bool(is_valid(language, tokens, complete=True).all())


@pytest.mark.parametrize("sampler", ["prefixes", "complete"])
def test_samples_follow_the_law_exactly(sampler):
    language, length, count = Dyck(2, 2, 0.3), 6, 200_000
    words = torch.tensor(list(product(range(3, 7), repeat=length)))
    words = words[is_valid(language, words, complete=sampler == "complete")]
    chances = doubles([probability(language, word) for word in words])
    if sampler == "complete":
        chances = chances / chances.sum()
    assert float(chances.sum()) == pytest.approx(1)
    tokens = getattr(language, f"sample_{sampler}")(count, length, seeded(1))
    base = 7 ** torch.arange(length)
    found, counts = (tokens * base).sum(1).unique(return_counts=True)
    expected = dict(zip((words * base).sum(1).tolist(), (chances * count).tolist(), strict=True))
    seen = dict(zip(found.tolist(), counts.tolist(), strict=True))
    assert set(seen) <= set(expected)
    squares = sum((seen.get(code, 0) - mean) ** 2 / mean for code, mean in expected.items())
    # Chi-squared: its mean is the degrees of freedom, its variance twice as much.
    freedom = len(expected) - 1
    assert abs(squares - freedom) < 5 * (2 * freedom) ** 0.5


def test_the_start_token_stands_first():
    tokens = with_start(read_brackets(Dyck(), "()")[None])
    assert tokens.tolist() == [[1, 3, 5]]
