"""Maps by query and key token, small enough to travel inside a page, for the viewer that draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from identilens.charts.labels import visible_text
from identilens.charts.packing import BASIS_BITS, BITS, HeadSpace, packed_matrix, packed_space

MAP_BUDGET = 8_000_000
"""Characters of a page that may be spent on maps."""


@dataclass(frozen=True)
class TokenMap:
    """One place of the viewer: matrices by query and key token that are shown together.

    Attributes:
        choices: What is chosen to see it, a selector each: ``{"text": 0, "layer": 3, "head": 5}``. With a layer and a
            head, all heads are shown as small maps.
        layers: The matrices by title, to switch between or to see side by side.
        queries: Tokens of the rows.
        keys: Tokens of the columns.
        note: A line about this map.
        differences: Further layers worked out in the page: ``{"null": ("raw", "effective")}`` is raw − effective.
        interest: Where not all maps fit into a page, those with the largest stay; the viewer opens on the largest.
        space: With a layer ``raw``: what the head's output depends on. The page works out ``effective`` (where it is
            no layer), ``influence``, ``certain``, and the intervals of a row.
    """

    choices: Mapping[str, str | int]
    layers: Mapping[str, Float[Tensor, "query key"]]
    queries: Sequence[str]
    keys: Sequence[str]
    note: str = ""
    differences: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    interest: int | float = 0
    space: HeadSpace | None = None

    @property
    def characters(self) -> int:
        """Length of what it takes in a page, before it is deflated."""
        bits = BITS * len(self.layers) * len(self.queries) * len(self.keys)
        if self.space:
            bits += BASIS_BITS * len(self.keys) * self.space.rank
        return map_characters(bits)


def map_characters(bits: int) -> int:
    """Return how many characters of base64 so many bits take."""
    return -(-bits // 24) * 4


def fitting(maps: Sequence[TokenMap], budget: int) -> list[TokenMap]:
    """Return the maps that fit into so many characters, the most interesting first to be taken, in their order."""
    kept = set()
    for view in sorted(maps, key=lambda view: -view.interest):
        if view.characters <= budget:
            budget -= view.characters
            kept.add(id(view))
    return [view for view in maps if id(view) in kept]


def viewer_data(maps: Sequence[TokenMap]) -> dict[str, Any]:
    """Return maps as the viewer reads them: tokens once for all maps that share them."""
    tokens: dict[tuple[str, ...], int] = {}

    def number(names: Sequence[str]) -> int:
        return tokens.setdefault(tuple(map(visible_text, names)), len(tokens))

    return {
        "maps": [
            {
                "choices": view.choices,
                "note": view.note,
                "layers": {name: packed_matrix(matrix) for name, matrix in view.layers.items()},
                "space": view.space and packed_space(view.space),
                "differences": view.differences,
                "queries": number(view.queries),
                "keys": number(view.keys),
            }
            for view in maps
        ],
        "tokens": list(tokens),
        "first": max(range(len(maps)), key=lambda index: maps[index].interest),
        "rules": next((view.space.rules for view in maps if view.space), None),
    }
