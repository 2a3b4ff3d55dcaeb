"""Maps by query and key token, small enough to travel inside a page, for the viewer that draws them."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from identilens.charts.labels import visible_text
from identilens.errors import InputError

MAP_BUDGET = 16_000_000
"""Characters of a page that may be spent on maps."""


@dataclass(frozen=True)
class TokenMap:
    """One place of the viewer: matrices by query and key token that are shown together.

    Attributes:
        choices: What is chosen to see it, a selector each: ``{"text": 0, "layer": 3, "head": 5}``.
        layers: The matrices by title, drawn side by side.
        queries: Tokens of the rows.
        keys: Tokens of the columns.
        note: A line about this map.
        differences: Further layers worked out in the page: ``{"null": ("raw", "effective")}`` is raw − effective.
        interest: Where not all maps fit into a page, those with the largest stay; the viewer opens on the largest.
    """

    choices: Mapping[str, str | int]
    layers: Mapping[str, Float[Tensor, "query key"]]
    queries: Sequence[str]
    keys: Sequence[str]
    note: str = ""
    differences: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    interest: int | float = 0

    def __post_init__(self) -> None:
        """Raise InputError if a matrix has another size than its tokens, or a difference names no layer."""
        size = (len(self.queries), len(self.keys))
        for name, matrix in self.layers.items():
            if tuple(matrix.shape) != size:
                raise InputError(f"layer {name!r} must be of {size[0]} × {size[1]} tokens; got {tuple(matrix.shape)}.")
        unknown = {name for pair in self.differences.values() for name in pair} - set(self.layers)
        if unknown:
            raise InputError(f"differences must name layers ({', '.join(self.layers)}); got {sorted(unknown)}.")

    @property
    def characters(self) -> int:
        """Length of its matrices as base64."""
        # Differences of rounded numbers need more digits than the numbers themselves.
        size = 4 if self.differences else 2
        return sum(-(-size * matrix.numel() // 3) * 4 for matrix in self.layers.values())


def fitting(maps: Sequence[TokenMap], budget: int) -> list[TokenMap]:
    """Return the maps that fit into so many characters, the most interesting first to be taken, in their order."""
    kept = set()
    for place in sorted(range(len(maps)), key=lambda place: -maps[place].interest):
        if maps[place].characters <= budget:
            budget -= maps[place].characters
            kept.add(place)
    return [one for place, one in enumerate(maps) if place in kept]


def viewer_data(maps: Sequence[TokenMap]) -> dict[str, Any]:
    """Return maps as the viewer reads them: tokens once for all maps that share them."""
    tokens: dict[tuple[str, ...], int] = {}

    def place(names: Sequence[str]) -> int:
        return tokens.setdefault(tuple(visible_text(name) for name in names), len(tokens))

    rows = [
        {
            "choices": dict(one.choices), "note": one.note,
            "layers": {name: _encoded(matrix, bool(one.differences)) for name, matrix in one.layers.items()},
            "bytes": 4 if one.differences else 2,
            "differences": {name: list(pair) for name, pair in one.differences.items()},
            "queries": place(one.queries), "keys": place(one.keys),
        }
        for one in maps
    ]  # fmt: skip
    first = max(range(len(maps)), key=lambda place: maps[place].interest)
    return {"maps": rows, "tokens": [list(names) for names in tokens], "first": first}


def _encoded(matrix: Float[Tensor, "query key"], full: bool) -> str:
    """Return a matrix as base64 of little-endian float32, or of float16 (relative error below 0.0005)."""
    numbers = matrix.detach().float().cpu().numpy()
    return base64.b64encode(numbers.astype("<f4" if full else "<f2").tobytes()).decode("ascii")
