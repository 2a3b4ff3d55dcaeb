"""Brackets as a person writes them, for tests."""

import torch

from identilens.lab.dyck.language import SPECIAL
from identilens.lab.dyck.parsing import token_names


def read_brackets(language, text):
    """Return the tokens of a text such as "([])", without a start token."""
    return torch.tensor([token_names(language).index(mark) for mark in text])


def open_symbol(language, kind, depth):
    """The symbol τ_{2i-1,d} of an open bracket: type from 0, depth from 1 to D."""
    return 1 + kind * language.max_depth + depth - 1


def close_symbol(language, kind, depth):
    """The symbol τ_{2i,d} of a closing bracket: type from 0, depth after it from 0 to D − 1."""
    return 1 + (language.types + kind) * language.max_depth + depth


def by_hand(language, tokens):
    """Depth, type and place of the top of the stack, and whether the prefix is valid, after each token."""
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


def is_valid(language, tokens, *, complete=False):
    """Return which sequences are prefixes of the language; with ``complete``, which are balanced words."""
    last = [by_hand(language, sequence)[-1] for sequence in tokens.tolist()]
    return torch.tensor([valid and not (complete and depth) for depth, *_, valid in last])
