"""Mixing results with given contributions, for tests of what is made from them."""

import numpy as np
import polars as pl
from identilens.results.mixing import MIXING_COLUMNS, TOKEN_COLUMNS, Mixing

RECORD = {
    "analysis": "mixing",
    "fingerprint": "f1" * 32,
    "model": {"name": "models/<script>alert(1)</script>", "sha256": "ab" * 32},
    "settings": {"method": "sketch", "wrt": "embeddings"},
    "command": ["identilens", "mixing"],
}


def mixing_of(arrays, tokens, kind="encoder", inputs=None):
    """A result with given contributions [layer, hidden, input] for each text; inputs are its tokens by default."""
    rows, names = [], []
    for text, array in enumerate(arrays):
        for (layer, hidden, position), value in np.ndenumerate(np.asarray(array, dtype=float)):
            rows.append((text, kind, layer + 1, hidden, position, value, 0.01, value, value**2, 1 - value))
        for side, held in (("hidden", tokens), ("input", inputs or tokens)):
            names += [(text, kind, side, position, token) for position, token in enumerate(held[text])]
    table = pl.DataFrame(rows, schema=MIXING_COLUMNS, orient="row")
    record = {**RECORD, "texts": {"count": len(arrays), "sha256": ["00"] * len(arrays)}}
    return Mixing(table, pl.DataFrame(names, schema=TOKEN_COLUMNS, orient="row"), record)


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
