"""Attention matrices made small enough to travel inside an HTML file, and the tokens on their axes."""

import base64
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float
from numpy import ndarray

from identilens.report.labels import visible_text
from identilens.results import Audit

_KEY = re.compile(r"text(\d+)\.layer(\d+)\.head(\d+)\.([a-z]+)\.effective")
# Three matrices of two-byte numbers, four characters of base64 for three bytes.
_CHARACTERS_A_CELL = 3 * 2 * 4 / 3
_STATISTICS = ("n_query", "n_key", "d_v", "rank", "nullity", "null_share", "pearson")


@dataclass(frozen=True)
class KeptMap:
    """One attention map whose matrices an audit kept, with its row of the table."""

    text: int
    kind: str
    layer: int
    head: int
    n_query: int
    n_key: int
    d_v: int
    rank: int
    nullity: int
    null_share: float
    pearson: float | None

    @property
    def key(self) -> str:
        """What the keys of its matrices start with."""
        return f"text{self.text}.layer{self.layer}.head{self.head}.{self.kind}"

    @property
    def characters(self) -> int:
        """Length of its matrices as `encoded` writes them."""
        return int(self.n_query * self.n_key * _CHARACTERS_A_CELL) + 4

    def facts(self) -> dict[str, Any]:
        """Return everything but the matrices, ready for JSON."""
        return asdict(self)


def kept_maps(audit: Audit) -> list[KeptMap]:
    """Return the maps whose raw and effective matrices were kept, by text, kind, layer and head."""
    found = []
    for key in audit.matrices:
        match = _KEY.fullmatch(key)
        if match and f"{key.removesuffix('.effective')}.raw" in audit.matrices:
            found.append((*map(int, match.group(1, 2, 3)), match.group(4)))
    columns = ["text", "layer", "head", "kind"]
    keys = pl.DataFrame(found, schema={name: audit.table.schema[name] for name in columns}, orient="row")
    rows = keys.join(audit.table, on=columns).sort("text", "kind", "layer", "head")
    shown = rows.select(*columns, *_STATISTICS).with_columns(pl.col("pearson").fill_nan(None))
    return [KeptMap(**row) for row in shown.iter_rows(named=True)]


def maps_within(maps: list[KeptMap], budget: int) -> list[KeptMap]:
    """Return the maps that fit into ``budget`` characters.

    Texts are taken whole as long as they fit; what room is left goes to the texts that did not, the heads
    with the largest null share of each layer first.
    """
    texts: dict[int, list[KeptMap]] = {}
    for one in maps:
        texts.setdefault(one.text, []).append(one)
    chosen: list[KeptMap] = []
    for text, of_text in list(texts.items()):
        need = sum(one.characters for one in of_text)
        if need <= budget:
            budget -= need
            chosen += texts.pop(text)
    for one in (one for of_text in texts.values() for one in _by_interest(of_text)):
        if one.characters <= budget:
            budget -= one.characters
            chosen.append(one)
    return sorted(chosen, key=lambda one: (one.text, one.kind, one.layer, one.head))


def matrices(audit: Audit, one: KeptMap) -> tuple[Float[ndarray, "q k"], Float[ndarray, "q k"], Float[ndarray, "q k"]]:
    """Return raw, effective and null attention of one map in float32."""
    raw = audit.matrices[f"{one.key}.raw"].float().numpy()
    effective = audit.matrices[f"{one.key}.effective"].float().numpy()
    return raw, effective, raw - effective


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


def _by_interest(maps: list[KeptMap]) -> Iterator[KeptMap]:
    """Yield the head with the largest null share of every layer, then the second of every layer, and so on."""
    layers: dict[tuple[str, int], list[KeptMap]] = {}
    for one in maps:
        layers.setdefault((one.kind, one.layer), []).append(one)
    ranked = [sorted(heads, key=lambda one: -one.null_share) for heads in layers.values()]
    for place in range(max(map(len, ranked))):
        yield from (heads[place] for heads in ranked if place < len(heads))
