"""What the charts and the finding of a mixing result are made from, worked out when first asked for."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import polars as pl

from identilens.errors import InputError
from identilens.measures.mixing import (
    box_statistics,
    boxes_by_tag,
    by_relative_position,
    context_of_token,
    neighbour_groups,
    own_contributions,
    rollout_correlation,
)

CLASS_TOKENS = ("[CLS]", "<s>", "<cls>")
SEPARATORS = ("[SEP]", "</s>", "<sep>")
"""Names that tokenizers give to the token for the whole text, and to what stands between two texts."""

_MEASURES = {
    "contributions": "contribution",
    "raw rollout": "raw_rollout",
    "effective rollout": "effective_rollout",
}


@dataclass(frozen=True)
class ClassContext:
    """What the class token takes from where (Brunner et al. 2020, Fig. 18).

    Attributes:
        token: The class token's name.
        centre: The token at position 0: the class token itself, or the first separator.
        frame: Columns as from `context_of_token`.
    """

    token: str
    centre: str
    frame: pl.DataFrame


@dataclass(frozen=True)
class Series:
    """Aggregates over all texts of a mixing result.

    Attributes:
        table: The result's table.
        tokens: What stands at each position.
        tags: The part of speech of each token; empty where there are none.
    """

    table: pl.DataFrame
    tokens: pl.DataFrame
    tags: pl.DataFrame

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of hidden states, the source's first."""
        held = set(self.table["kind"].unique())
        return [kind for kind in ("encoder", "decoder", "cross") if kind in held]

    @cached_property
    def own_kinds(self) -> list[str]:
        """Kinds that have a token of their own."""
        return [kind for kind in self.kinds if kind != "cross"]

    @cached_property
    def own_rows(self) -> pl.DataFrame:
        """What each token contributes to its own hidden state."""
        return own_contributions(self.table, self.tokens)

    @cached_property
    def own(self) -> pl.DataFrame:
        """Boxes of own contributions with the share not their own largest (Fig. 3a, 3b)."""
        return box_statistics(self.own_rows)

    @cached_property
    def neighbours(self) -> pl.DataFrame:
        """In which layer each group of neighbours contributes most (Fig. 4a)."""
        return neighbour_groups(self.table)

    @cached_property
    def positions(self) -> pl.DataFrame:
        """Context by relative position at the first, middle and last layer (Fig. 4b)."""
        return by_relative_position(self.table)

    @cached_property
    def correlation(self) -> pl.DataFrame:
        """Rollouts against contributions by layer; without rows where there are no rollouts."""
        return rollout_correlation(self.table.filter(pl.col("kind") != "cross"))

    @cached_property
    def own_medians(self) -> pl.DataFrame:
        """Median own share by layer in contributions and in rollouts: kind, layer, measure, median."""
        own = self.table.filter((pl.col("kind") != "cross") & (pl.col("hidden") == pl.col("input")))
        medians = own.group_by("kind", "layer").agg(
            pl.col(column).cast(pl.Float64).median().alias(name) for name, column in _MEASURES.items()
        )
        long = medians.unpivot(index=["kind", "layer"], variable_name="measure", value_name="median")
        order = pl.col("measure").cast(pl.Enum(list(_MEASURES)))
        return long.with_columns(order).drop_nulls("median").sort("kind", "measure", "layer")

    @cached_property
    def speech(self) -> pl.DataFrame:
        """Boxes by part of speech (Fig. 26–37): tags are those of the source; without rows where there are none."""
        source = self.own_rows.filter(pl.col("kind") == self.own_kinds[0])
        return boxes_by_tag(source, self.tags) if len(self.tags) else pl.DataFrame()

    @cached_property
    def class_context(self) -> list[ClassContext]:
        """What the class token takes from where; empty where no text opens with one."""
        return list(self._class_context())

    def _class_context(self) -> Iterator[ClassContext]:
        hidden = self.tokens.filter((pl.col("side") == "hidden") & (pl.col("kind") == "encoder"))
        opening = set(hidden.filter(pl.col("position") == 0)["token"])
        held = set(hidden["token"])
        token = next((name for name in CLASS_TOKENS if name in opening), None)
        if token is None:
            return
        separator = next((name for name in SEPARATORS if name in held), None)
        for centre in (token, separator):
            if centre is not None:
                try:
                    frame = context_of_token(self.table, self.tokens, token, centre)
                except InputError:
                    # No text holds both of them and something beside.
                    continue
                yield ClassContext(token, centre, frame.filter(pl.col("kind") == "encoder"))
