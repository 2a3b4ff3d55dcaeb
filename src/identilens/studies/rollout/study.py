"""What attention rollout may be while every head's output stays the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.linalg.memory import wide
from identilens.measures.attention.row_programs import ORDER_MARGIN
from identilens.measures.mixing.bounds import HeadRows, RolloutBounds, rollout_bounds
from identilens.measures.mixing.rollout import attention_rollout
from identilens.models.heads import Head
from identilens.models.lens import Lens
from identilens.models.rollouts import require_attention_alone, self_attention
from identilens.models.substitution import Address, Replacements
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.heads import (
    Place,
    TextStudy,
    asked_places,
    check_asked,
    filled,
)
from identilens.studies.rollout.result import Rollouts
from identilens.studies.rollout.settings import RolloutSettings


class RolloutStudy(TextStudy[RolloutSettings, Rollouts]):
    """Bound attention rollout over all maps that leave the output of every head the same.

    Rollout (Abnar and Zuidema 2020) multiplies the attention of all layers, the residual connection counting half.
    Other maps with the same output of every head leave the model as it is, but not its rollout. Of each query and
    target: the value, proven ends of it over all these maps, and bounds of the target's rank. Derivation and limits:
    docs/rollout.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully, some layers are no attention, or
            there is cross attention.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.rollout(lens, idl.examples()[0], queries="once", targets=("tailor", "sitting"), tolerance=0)
        >>> found.table.select("query", "token", "value", "lo", "hi")
        shape: (4, 5)
        ┌───────┬─────────┬──────────┬──────────┬──────────┐
        │ query ┆ token   ┆ value    ┆ lo       ┆ hi       │
        │ ---   ┆ ---     ┆ ---      ┆ ---      ┆ ---      │
        │ i64   ┆ str     ┆ f64      ┆ f64      ┆ f64      │
        ╞═══════╪═════════╪══════════╪══════════╪══════════╡
        │ 7     ┆ tailor  ┆ 0.021131 ┆ 0.01648  ┆ 0.026716 │
        │ 7     ┆ sitting ┆ 0.010591 ┆ 0.005491 ┆ 0.017158 │
        │ 10    ┆ tailor  ┆ 0.020071 ┆ 0.015478 ┆ 0.025565 │
        │ 10    ┆ sitting ┆ 0.012898 ┆ 0.007907 ┆ 0.019364 │
        └───────┴─────────┴──────────┴──────────┴──────────┘
    """

    name = "rollout"
    settings_type = RolloutSettings
    result_type = Rollouts

    def __init__(self, lens: Lens, texts: Any, settings: RolloutSettings) -> None:
        super().__init__(lens, texts, settings)
        sites = lens.sites(self.items[0])
        require_attention_alone(lens)
        if {site.kind for site in sites} not in ({"encoder"}, {"decoder"}):
            raise _several_stacks(lens)
        check_asked(self.items, settings.targets)
        self.tolerances = settings.read_tolerances(lens.dtype)

    def run(self, part: int) -> Output:
        """Return the bounds of one text."""
        settings = self.settings
        layers = [[*layer.heads] for layer in self_attention(self.lens, self.items[part])]
        every = [head for layer in layers for head in layer]
        for head in every:
            head.refuse_sink()
        heads = [
            [HeadRows(head.attention, head.projected, head.visible) for head in layer]
            for layer in layers
        ]
        maps = [torch.stack([rows.weights for rows in layer]).mean(0) for layer in heads]
        n = len(maps[0])
        if any(weights.shape != (n, n) for weights in maps):
            raise _several_stacks(self.lens)
        tokens = self.tokens(self.items[part], layers[0][0])
        [names] = tokens.values()
        queries, targets = (
            asked_places(names, asked) for asked in (settings.queries, settings.targets)
        )
        # Equal weights reach every token that a query can see.
        equal = torch.ones_like(maps[0])
        alike = [equal if rows.visible is None else rows.visible.to(equal) for rows, *_ in heads]
        values, reach = (
            attention_rollout(torch.stack(chain))[-1][queries] for chain in (maps, alike)
        )
        text = _Text(names, queries, targets, values, reach > 0)
        tables: dict[str, list[Any]] = {name: [] for name in Rollouts.schema}
        matrices = {}
        # Nothing is asked of a text without the tokens that were named.
        for tolerance in self.tolerances if queries and targets else ():
            bounds = rollout_bounds(
                heads,
                torch.eye(n).to(equal)[targets],
                queries=queries,
                tolerance=tolerance.size,
                witnesses=settings.witnesses,
                step=lambda done: self.tell(f"text {part}, {done} of {len(layers)} layers"),
            )
            frames = text.tables(bounds)
            if settings.witnesses and not matrices:
                moved, matrices = self._put_back(part, every, text, bounds)
                frames["witnesses"] = pl.DataFrame(moved)
            for name, frame in frames.items():
                tables[name].append(
                    frame.with_columns(text=pl.lit(part), tolerance=pl.lit(tolerance.name))
                )
        return Output(filled(Rollouts.schema, tables), matrices, {part: tokens} if matrices else {})

    def _put_back(
        self, part: int, heads: Sequence[Head], text: "_Text", bounds: RolloutBounds
    ) -> tuple[list[Row], dict[str, Tensor]]:
        """Return how far hidden states move when maps that reach an end are put into the model; all maps by name."""

        def states(maps: Replacements) -> Float[Tensor, "layer number"]:
            [states] = self.lens.substitute(maps, self.items[part]).hidden_states.values()
            return wide(states.flatten(1))

        places = [Place(part, head.site, head.head) for head in heads]
        matrices = {
            slot.key("raw"): head.attention for slot, head in zip(places, heads, strict=True)
        }
        plain, rows = states({}), []
        ends = ("lo", bounds.least_maps or ()), ("hi", bounds.greatest_maps or ())
        for (number, target), (end, reached) in product(enumerate(text.targets), ends):
            replaced: dict[Address, Any] = {}
            maps = [weights.clone() for layer in reached for weights in layer[number]]
            for slot, head, weights in zip(places, heads, maps, strict=True):
                replaced[head.address] = matrices[slot.key(f"{end}{target}")] = weights
            change = states(replaced) - plain
            moved = float((change.norm(dim=1) / plain.norm(dim=1)).max())
            token = text.names[target]
            rows.append({"target": target, "token": token, "end": end, "moved": moved})
        return rows, matrices


def _several_stacks(lens: Lens) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"rollout multiplies maps of one sequence onto itself, and {type(lens.model).__name__} has layers whose keys "
        "are of another sequence or a shortened one, or several stacks of layers. Choose a model with one stack, or "
        "certify its heads one at a time."
    )


rollout = study_function(RolloutStudy, "rollout")


@dataclass(frozen=True)
class _Text:
    """What is asked of a text, the rollout of its queries, and which tokens can reach each of them."""

    names: Sequence[str]
    queries: list[int]
    targets: list[int]
    values: Float[Tensor, "query input"]
    visible: Bool[Tensor, "query input"]

    def tables(self, bounds: RolloutBounds) -> dict[str, pl.DataFrame]:
        """Return the rows of the tables ``table`` and ``rows`` at one tolerance.

        Ranks are those among the tokens that a query can see.
        """
        values, lo, hi = self.values, bounds.lo.mT, bounds.hi.mT
        largest, names = values.argmax(1).tolist(), pl.Series(self.names)
        counts, of_targets = self.visible.sum(1), (slice(None), self.targets)
        # A token that a query cannot see has the value 0, and none has less.
        higher = values[:, None] > values[of_targets][:, :, None]
        columns = {
            "seen": self.visible[of_targets],
            "value": bounds.value.mT,
            "lo": lo,
            "hi": hi,
            "rank": 1 + higher.sum(2),
        }
        rows = {
            "query": self.queries,
            "query_token": names[self.queries],
            "tokens": counts.tolist(),
            "largest": largest,
            "token": names[largest],
            "gap": bounds.gap,
        }
        if len(self.targets) == len(self.names):
            # Which token is above which in every alternative.
            above = lo[:, :, None] > hi[:, None] + ORDER_MARGIN
            below = (above & self.visible[:, None]).sum(2)
            columns["highest_rank"] = 1 + above.sum(1)
            columns["lowest_rank"] = counts[:, None] - below
            rows["certified"] = (columns["lowest_rank"] == 1).any(1).tolist()
        by_query = pl.DataFrame(rows)
        of = pl.DataFrame({"target": self.targets, "token": names[self.targets]})
        cells = [pl.Series(name, column.flatten().tolist()) for name, column in columns.items()]
        table = by_query.select("query", "query_token").join(of, how="cross")
        return {"table": table.with_columns(cells).filter("seen"), "rows": by_query}
