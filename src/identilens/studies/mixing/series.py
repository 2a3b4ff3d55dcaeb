"""What the charts and the finding of a mixing result are made from, worked out when first asked for."""

from dataclasses import dataclass
from functools import cached_property

import polars as pl

from identilens.measures import mixing
from identilens.measures.mixing.own import own_contributions

CLASS_TOKENS = ("[CLS]", "<s>", "<cls>")
SEPARATORS = ("[SEP]", "</s>", "<sep>")
"""Names that tokenizers give to the token for the whole text, and to what stands between two texts."""

NEAR = 20
"""Positions to the left and to the right whose context is drawn."""


@dataclass(frozen=True)
class Series:
    """Aggregates over all texts of a mixing result: of its table, token names and tags."""

    table: pl.DataFrame
    tokens: pl.DataFrame
    tags: pl.DataFrame

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of hidden states, the source's first."""
        return self.table["kind"].unique().sort().to_list()

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
        return mixing.box_statistics(self.own_rows)

    @cached_property
    def neighbours(self) -> pl.DataFrame:
        """In which layer each group of neighbours contributes most (Fig. 4a)."""
        return mixing.neighbour_groups(self.table)

    @cached_property
    def positions(self) -> pl.DataFrame:
        """Context by relative position at the first, middle and last layer (Fig. 4b)."""
        return mixing.by_relative_position(self.table)

    @cached_property
    def correlation(self) -> pl.DataFrame:
        """Rollouts against contributions by layer; without rows where there are no rollouts."""
        return mixing.rollout_correlation(self.table.filter(pl.col("kind") != "cross"))

    @cached_property
    def speech(self) -> pl.DataFrame:
        """Boxes by part of speech (Fig. 26–37): tags are those of the source; without rows where there are none."""
        source = self.own_rows.filter(kind=self.own_kinds[0])
        return mixing.boxes_by_tag(source, self.tags) if len(self.tags) else pl.DataFrame()

    @cached_property
    def class_context(self) -> pl.DataFrame:
        """What the class token takes from where, counted from itself or a separator, the ``centre`` (Fig. 18).

        Without rows where no text opens with a class token.
        """
        hidden = self.tokens.filter(side="hidden", kind="encoder")
        opening, occurring = set(hidden.filter(position=0)["token"]), set(hidden["token"])
        frames = [pl.DataFrame()]
        for token in [name for name in CLASS_TOKENS if name in opening][:1]:
            for centre in [token, *[name for name in SEPARATORS if name in occurring][:1]]:
                frame = mixing.context_of_token(self.table, self.tokens, token, centre)
                frames.append(frame.filter(kind="encoder").with_columns(centre=pl.lit(centre)))
        return pl.concat(frames, how="diagonal")

    @property
    def near(self) -> pl.DataFrame:
        """Context by relative position up to `NEAR`, with an empty row for the own token, which is no context."""
        near = self.positions.filter(pl.col("offset").abs() <= NEAR)
        own = near.select("kind", "layer", offset=0).unique(maintain_order=True)
        return pl.concat([near, own], how="diagonal_relaxed")
