"""Parsing against a stack written out in plain Python."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.brackets import is_valid, read_brackets
from helpers.heads import seeded, seeds
from identilens.lab.dyck.language import SPECIAL, Dyck, with_start
from identilens.lab.dyck.parsing import (
    next_token_distribution,
    parse,
    probe_prefix,
    token_names,
    write_brackets,
)


def by_hand(language, tokens):
    stack, rows, alive = [], [], True
    for place, token in enumerate(tokens):
        kind = token - SPECIAL
        if alive and 0 <= kind < language.types:
            alive = len(stack) < language.max_depth
            if alive:
                stack.append((kind, place))
        elif alive and kind >= language.types:
            alive = bool(stack) and stack[-1][0] == kind - language.types
            if alive:
                stack.pop()
        top = stack[-1] if stack else (-1, -1)
        rows.append((len(stack), *top, alive))
    return rows


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 14), seeds)
@settings(max_examples=60, deadline=None)
def test_parse_is_what_a_stack_does(types, depth, length, seed):
    language = Dyck(types, depth)
    generator = seeded(seed)
    tokens = torch.randint(1, language.vocabulary, (6, length), generator=generator)
    tokens = torch.cat([tokens, language.sample_prefixes(6, length, generator)])
    found = parse(language, tokens)
    parts = (found.depth, found.top_type, found.top_place, found.valid)
    for row, sequence in enumerate(tokens.tolist()):
        got = zip(*(part[row].tolist() for part in parts), strict=True)
        for one, wanted in zip(got, by_hand(language, sequence), strict=True):
            # From where a sequence leaves the language, its parse has no meaning.
            assert one == wanted if wanted[-1] else not one[-1]


def test_a_worked_example():
    found = parse(Dyck(2, 3), read_brackets(Dyck(2, 3), "([])[")[None])
    assert found.depth.tolist() == [[1, 2, 1, 0, 1]]
    assert found.top_type.tolist() == [[0, 1, 0, -1, 1]]
    assert found.top_place.tolist() == [[0, 1, 0, -1, 4]]


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


def test_brackets_are_written_and_read():
    language = Dyck(3, 4)
    tokens = read_brackets(language, "([{}])")
    assert "".join(write_brackets(language, tokens)) == "([{}])"
    assert write_brackets(language, with_start(tokens[None])[0])[0] == "<start>"
    assert len(set(token_names(Dyck(12, 2)))) == Dyck(12, 2).vocabulary


@pytest.mark.parametrize(("types", "depth"), [(2, 4), (3, 8), (1, 1)])
def test_the_probe_prefix_has_all_brackets_at_all_depths(types, depth):
    language = Dyck(types, depth)
    tokens = probe_prefix(language)[None]
    found = parse(language, tokens)
    assert tokens.shape == (1, 2 * types * depth)
    assert bool(found.valid.all())
    assert (
        len(set(zip(tokens[0].tolist(), found.depth[0].tolist(), strict=True))) == 2 * types * depth
    )
