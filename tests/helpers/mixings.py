"""Mixing results with given contributions, for tests of what is made from them."""

from dataclasses import replace

import numpy as np
import polars as pl

from helpers.pages import SCRIPT, TOKENS
from identilens.studies.mixing.result import Mixing

RECORD = {
    "analysis": "mixing",
    "fingerprint": "f1" * 32,
    "libraries": {"identilens": "0.1.0"},
    "finished": True,
    "model": {"name": f"models/{SCRIPT}", "digest": "ab" * 32},
    "settings": {"method": "sketch"},
    "seed": 0,
    "texts": {"count": 1},
    "processor": "one",
    "python": "3.11",
    "platform": "somewhere",
}


def words(count):
    """Return distinct tokens, special ones at both ends."""
    return ["[CLS]", *(f"word{index}" for index in range(count - 2)), "[SEP]"][:count]


def mixing_of(arrays, tokens, kind="encoder", inputs=None):
    """A result with given contributions [layer, hidden, input] for each text; inputs are its tokens by default."""
    rows, names = [], []
    for text, array in enumerate(arrays):
        for (layer, hidden, position), value in np.ndenumerate(np.asarray(array, dtype=float)):
            rows.append(
                (
                    text, kind, layer + 1, hidden, position, value, 0.01, 0.02, value, value**2, 1 - value,
                )
            )  # fmt: skip
        for side, held in (("hidden", tokens), ("input", inputs or tokens)):
            names += [
                (text, kind, side, position, token) for position, token in enumerate(held[text])
            ]
    made = {"table": rows, "token_names": names}
    tables = {
        name: pl.DataFrame(held, schema=Mixing.schema[name], orient="row")
        for name, held in made.items()
    }
    return Mixing.of(
        tables, {**RECORD, "texts": {"count": len(arrays), "sha256": ["00"] * len(arrays)}}
    )


def random_mixing(tokens, layers=3, kind="encoder", inputs=None):
    """A result with random contributions that sum to 1, causal for decoders, and its arrays."""
    generator = np.random.default_rng(0)
    arrays = []
    for hidden, given in zip(tokens, inputs or tokens, strict=True):
        array = generator.random((layers, len(hidden), len(given)))
        if kind == "decoder":
            array = np.tril(array)
        arrays.append(array / array.sum(-1, keepdims=True))
    return arrays, mixing_of(arrays, tokens, kind, inputs)


def tricky_mixing():
    """An encoder-decoder's result with tokens that a page must cope with."""
    source = [[*TOKENS, "ferry", "[SEP]"], words(9)]
    target = [words(6), ["[CLS]", "quay", SCRIPT]]
    parts = [
        random_mixing(source)[1],
        random_mixing(target, kind="decoder")[1],
        random_mixing(target, kind="cross", inputs=source)[1],
    ]
    table, names = (
        pl.concat([getattr(part, name) for part in parts]) for name in ("table", "token_names")
    )
    return replace(parts[0], table=table, token_names=names)
