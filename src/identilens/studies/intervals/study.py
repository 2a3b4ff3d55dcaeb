"""What is certain about each attention weight: its interval, whether it is pinned, the certified order of keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Lt

from identilens.measures.attention.intervals import PIN_TOLERANCE, certify_row, minimum_norm_alternative
from identilens.models.heads import Head
from identilens.models.sequences import sides
from identilens.runs.study import Output, study_function
from identilens.runs.tables import table_of
from identilens.studies.heads import Place, RowSettings, RowStudy
from identilens.studies.intervals.result import Intervals

Rows = list[dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class IntervalSettings(RowSettings):
    """Which rows of which heads.

    Attributes:
        pin_tolerance: Largest width of an interval whose weight counts as pinned.
    """

    pin_tolerance: Annotated[float, Ge(0), Lt(1)] = PIN_TOLERANCE


class IntervalStudy(RowStudy[IntervalSettings, Intervals]):
    """Bound every attention weight over all distributions with the same output, and certify the order of keys.

    For each row: proven bounds lo and hi of each weight, from linear programs; whether the weight is pinned; the pairs
    of keys that have the same order in every alternative; the key that is first in every alternative; the alternative
    of least norm. A row of 100 tokens takes about a second. Derivation and limits: docs/alternatives.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, a head or query that is not there, or attention with
            sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an interval cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> text = "The ferry left the harbour before dawn, and nobody could say who had paid."
        >>> result = idl.intervals(lens, text, layers=3, heads=5, queries="harbour")
        >>> result.table.select("key", "weight", "lo", "hi").head(3)
        shape: (3, 4)
        ┌─────┬──────────┬──────────┬──────────┐
        │ key ┆ weight   ┆ lo       ┆ hi       │
        │ --- ┆ ---      ┆ ---      ┆ ---      │
        │ i64 ┆ f64      ┆ f64      ┆ f64      │
        ╞═════╪══════════╪══════════╪══════════╡
        │ 0   ┆ 0.783659 ┆ 0.783659 ┆ 0.783659 │
        │ 1   ┆ 0.008741 ┆ 0.008741 ┆ 0.008741 │
        │ 2   ┆ 0.051521 ┆ 0.051521 ┆ 0.051521 │
        └─────┴──────────┴──────────┴──────────┘
    """

    name = "intervals"
    settings_type = IntervalSettings
    result_type = Intervals
    merge: ClassVar = {"positions": lambda table: table.unique(maintain_order=True)}

    def output(self, place: Place, head: Head, queries: Sequence[int]) -> Output:
        """Return the tables of some rows of a head."""
        rows: dict[str, Rows] = {"table": [], "rows": [], "order": [], "positions": self._positions(place, head)}
        for query in queries:
            for name, more in self._certified({**place.row, "query": query}, head).items():
                rows[name] += more
        return Output({name: table_of(columns, rows[name]) for name, columns in Intervals.schema.items()})

    def _certified(self, at: dict[str, Any], head: Head) -> dict[str, Rows]:
        """Return what is certain of one row; ``at`` names it."""
        query = at["query"]
        weights, visible = head.attention[query], None if head.visible is None else head.visible[query]
        certificate = certify_row(weights, head.projected, visible=visible, pin_tolerance=self.settings.pin_tolerance)
        bounds = certificate.intervals
        columns = {
            "weight": weights, "lo": bounds.lo, "hi": bounds.hi, "pinned": bounds.pinned,
            "effective": head.effective[query],
            "minimum_norm": minimum_norm_alternative(weights, head.projected, visible=visible).point,
        }  # fmt: skip
        lists = {name: column.tolist() for name, column in columns.items()}
        seen = range(len(weights)) if visible is None else torch.nonzero(visible).flatten().tolist()
        pairs = torch.nonzero(certificate.above).tolist()
        row = {
            "simplex_nullity": bounds.nullity, "certified_top": certificate.top, "certified_pairs": len(pairs),
            "pairs": len(seen) * (len(seen) - 1) // 2, "gap": bounds.gap,
        }  # fmt: skip
        return {
            "table": [{**at, "key": key, **{name: values[key] for name, values in lists.items()}} for key in seen],
            "rows": [{**at, **row}],
            "order": [{**at, "above": above, "below": below} for above, below in pairs],
        }

    def _positions(self, place: Place, head: Head) -> Rows:
        tokens = self.heads.tokens(head, place.text)
        return [
            {"text": place.text, "kind": head.kind, "side": side, "position": position, "token": name}
            for side, sequence in sides(head.kind, tokens)._asdict().items()
            for position, name in enumerate(tokens[sequence])
        ]


intervals = study_function(IntervalStudy, "intervals")
