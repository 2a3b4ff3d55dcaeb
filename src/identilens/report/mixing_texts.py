"""Contributions of single texts, made small enough to travel inside an HTML file."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from identilens.report.labels import visible_text
from identilens.results import Mixing
from identilens.results.mixing import Measure

MOST_TEXTS = 20

_MEASURES: tuple[Measure, ...] = ("contribution", "raw_rollout", "effective_rollout")
_STEPS = 65535


@dataclass(frozen=True)
class ShownText:
    """One text and kind of hidden states whose every contribution goes into a report.

    Attributes:
        text: Its number.
        kind: Kind of hidden states.
        hidden: Tokens of the hidden states, readable.
        inputs: Tokens of the input, readable.
        layers: Layer numbers.
        measures: Which of contribution, raw_rollout and effective_rollout are held.
        encoded: Base64 of the measures one after the other, [layer, hidden, input] each, in steps of 1/65535 as
            little-endian two-byte numbers.
    """

    text: int
    kind: str
    hidden: list[str]
    inputs: list[str]
    layers: list[int]
    measures: list[str]
    encoded: str

    def facts(self) -> dict[str, Any]:
        """Return everything but the numbers, ready for JSON."""
        return {name: getattr(self, name) for name in ("text", "kind", "hidden", "inputs", "layers", "measures")}


def shown_texts(mixing: Mixing, budget: int, first: int = 0) -> list[ShownText]:
    """Return the texts whose contributions fit into ``budget`` characters, at most `MOST_TEXTS`.

    Args:
        mixing: The result.
        budget: Characters to spend.
        first: The text that comes before all others.
    """
    texts = mixing.table["text"].unique().sort().to_list()
    # Stable: the others stay in their order.
    texts.sort(key=lambda text: text != first)
    found: list[ShownText] = []
    used = 0
    for text in texts:
        if len({one.text for one in found}) == MOST_TEXTS:
            break
        rows = mixing.table.filter(pl.col("text") == text)
        # Four characters hold three bytes; a number takes two.
        need = int(len(rows) * len(_MEASURES) * 8 / 3)
        if used + need <= budget:
            used += need
            found += _of_text(mixing, text, rows)
    return found


def _of_text(mixing: Mixing, text: int, rows: pl.DataFrame) -> Iterator[ShownText]:
    for kind in mixing.kinds:
        here = rows.filter(pl.col("kind") == kind)
        if not len(here):
            continue
        measures = [name for name in _MEASURES if here[name].null_count() == 0]
        columns = [here[name].to_numpy() for name in measures]
        steps = np.rint(np.stack(columns).astype(np.float64).clip(0, 1) * _STEPS).astype("<u2")
        hidden, inputs = (
            [visible_text(token) for token in mixing.names(text, kind, side)] for side in ("hidden", "input")
        )
        layers = here["layer"].unique().sort().to_list()
        encoded = base64.b64encode(steps.tobytes()).decode("ascii")
        yield ShownText(text, kind, hidden, inputs, layers, list(measures), encoded)
