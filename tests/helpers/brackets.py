"""Brackets as a person writes them, for tests."""

import torch

from identilens.dyck.parsing import token_names


def read_brackets(language, text):
    """Return the tokens of a text such as "([])", without a start token."""
    return torch.tensor([token_names(language).index(mark) for mark in text])
