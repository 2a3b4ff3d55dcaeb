"""Attention matrices made small enough to travel inside an HTML file, and the tokens on their axes."""

import base64
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from identilens.report.labels import visible_text


def encoded(parts: Sequence[Float[ndarray, "q k"]]) -> str:
    """Return matrices, one after the other, as base64 of little-endian float16.

    Each is rounded by itself (relative error below 0.0005, entries below 6e-8 become 0), so that small null
    entries are not lost in the difference of two rounded ones.
    """
    return base64.b64encode(np.stack(parts).astype("<f2").tobytes()).decode("ascii")


def axis_tokens(tokens: dict[str, list[str]], kind: str, n_query: int, n_key: int) -> tuple[list[str], list[str]]:
    """Return the tokens of the queries and of the keys, as people can read them.

    Args:
        tokens: A text's tokens by sequence ("encoder", "decoder").
        kind: Kind of attention.
        n_query: Number of queries.
        n_key: Number of keys.
    """
    own = "decoder" if "decoder" in tokens and kind != "encoder" else "encoder"
    other = "encoder" if kind == "cross" else own
    return _named(tokens.get(own, []), n_query), _named(tokens.get(other, []), n_key)


def _named(tokens: list[str], positions: int) -> list[str]:
    if len(tokens) != positions:
        return [f"position {index}" for index in range(positions)]
    return [visible_text(token) for token in tokens]
