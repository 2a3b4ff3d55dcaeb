"""Parsing against a stack written out in plain Python."""

from itertools import product
from math import atan, cos, sin

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.brackets import by_hand, close_symbol, is_valid, open_symbol, read_brackets
from helpers.heads import doubles, seeded, seeds
from identilens.lab.dyck.embeddings import minimal_embedding, symbol_ids
from identilens.lab.dyck.language import SPECIAL, Dyck, with_start
from identilens.lab.dyck.parsing import (
    next_token_distribution,
    parse,
    probe_prefix,
)


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 14), seeds)
@settings(max_examples=60, deadline=None)
def test_parse_is_what_a_stack_does(types, depth, length, seed):
    language = Dyck(types, depth)
    generator = seeded(seed)
    tokens = torch.randint(1, language.vocabulary, (6, length), generator=generator)
    tokens = torch.cat([tokens, language.sample_prefixes(6, length, generator)])
    found = parse(language, tokens)
    parts = (found.depth, found.top_type, found.top_place)
    for row, sequence in enumerate(tokens.tolist()):
        got = zip(*(part[row].tolist() for part in parts), strict=True)
        for one, wanted in zip(got, by_hand(language, sequence), strict=True):
            # From where a sequence leaves the language, its parse has no meaning.
            assert one == wanted[:3] or not wanted[-1]


@given(st.integers(1, 3), st.integers(1, 4), st.floats(0.1, 0.9), seeds)
@settings(max_examples=30, deadline=None)
def test_next_tokens_are_those_that_keep_the_prefix_valid(types, depth, chance, seed):
    language = Dyck(types, depth, chance)
    tokens = language.sample_prefixes(4, 9, seeded(seed))
    found = parse(language, tokens)
    law = next_token_distribution(language, found.depth[:, -1], found.top_type[:, -1])
    assert torch.allclose(law.sum(-1), torch.ones(4).double())
    for token in range(SPECIAL, language.vocabulary):
        longer = torch.cat([tokens, torch.full((4, 1), token)], 1)
        assert torch.equal(law[:, token] > 0, is_valid(language, longer))
    between = (found.depth[:, -1] > 0) & (found.depth[:, -1] < depth)
    opened = law[:, SPECIAL : SPECIAL + types].sum(1)
    assert torch.allclose(opened[between], torch.full_like(opened[between], chance))


@pytest.mark.parametrize(("types", "depth"), [(2, 4), (3, 8), (1, 1)])
def test_the_probe_prefix_has_all_brackets_at_all_depths(types, depth):
    language = Dyck(types, depth)
    tokens = probe_prefix(language)[None]
    found = parse(language, tokens)
    assert tokens.shape == (1, 2 * types * depth)
    assert bool(is_valid(language, tokens).all())
    assert (
        len(set(zip(tokens[0].tolist(), found.depth[0].tolist(), strict=True))) == 2 * types * depth
    )


languages = st.builds(
    Dyck,
    types=st.integers(1, 4),
    max_depth=st.integers(1, 6),
    open_probability=st.floats(0.05, 0.95),
)


def probability(language, tokens):
    """Probability of a prefix by Definition 1, bracket by bracket."""
    found = parse(language, tokens[None])
    depth = torch.cat([torch.zeros(1, 1, dtype=torch.long), found.depth[:, :-1]], 1)
    top = torch.cat([torch.full((1, 1), -1), found.top_type[:, :-1]], 1)
    law = next_token_distribution(language, depth, top)[0]
    return float(law[torch.arange(len(tokens)), tokens].prod())


samplers = pytest.mark.parametrize("sampler", ["prefixes", "complete"])


@samplers
@given(languages, st.integers(1, 20), seeds)
@settings(max_examples=30, deadline=None)
def test_samples_are_prefixes_or_complete_words(sampler, language, half, seed):
    tokens = getattr(language, f"sample_{sampler}")(8, 2 * half, seeded(seed))
    assert tokens.shape == (8, 2 * half)
    assert bool(is_valid(language, tokens, complete=sampler == "complete").all())


@samplers
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


LANGUAGE = Dyck(2, 3)


def test_symbols_are_types_and_depths():
    tokens = with_start(read_brackets(LANGUAGE, "([])")[None])[0]
    wanted = [
        0, open_symbol(LANGUAGE, 0, 1), open_symbol(LANGUAGE, 1, 2), close_symbol(LANGUAGE, 1, 1),
        close_symbol(LANGUAGE, 0, 0),
    ]  # fmt: skip
    assert symbol_ids(LANGUAGE, tokens).tolist() == wanted


def test_one_hot():
    assert torch.equal(minimal_embedding(LANGUAGE, "one-hot"), torch.eye(13))


def test_type_and_depth():
    found = minimal_embedding(LANGUAGE, "type-depth")
    assert found.shape == (13, 5 + 4)
    # Type 1's closing bracket is the fourth token; after it the depth is 2.
    assert found[close_symbol(LANGUAGE, 1, 2)].tolist() == [0, 0, 0, 0, 1, 0, 0, 1, 0]
    assert found[open_symbol(LANGUAGE, 0, 3)].tolist() == [0, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found[0].tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_angle(depth):
    symbol = close_symbol(LANGUAGE, 0, depth) if depth < 3 else open_symbol(LANGUAGE, 0, depth)
    theta = atan(depth / (3 + 2 - depth))
    found = minimal_embedding(LANGUAGE, "angle")[symbol, -2:]
    assert found.tolist() == pytest.approx([cos(theta), sin(theta)], abs=1e-6)
