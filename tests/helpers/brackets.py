"""Brackets as a person writes them, for tests."""

import torch

from identilens.lab.dyck.parsing import parse, token_names


def read_brackets(language, text):
    """Return the tokens of a text such as "([])", without a start token."""
    return torch.tensor([token_names(language).index(mark) for mark in text])


def open_symbol(language, kind, depth):
    """The symbol τ_{2i-1,d} of an open bracket: type from 0, depth from 1 to D."""
    return 1 + kind * language.max_depth + depth - 1


def close_symbol(language, kind, depth):
    """The symbol τ_{2i,d} of a closing bracket: type from 0, depth after it from 0 to D − 1."""
    return 1 + (language.types + kind) * language.max_depth + depth


def is_valid(language, tokens, *, complete=False):
    """Return which sequences are prefixes of the language; with ``complete``, which are balanced words."""
    parsed = parse(language, tokens)
    return parsed.valid[:, -1] & (parsed.depth[:, -1] == 0) if complete else parsed.valid[:, -1]
