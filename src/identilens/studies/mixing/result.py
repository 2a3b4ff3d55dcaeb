"""The result of a mixing analysis: how much of each input token is in each hidden token, at every layer."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import polars as pl
from jaxtyping import Float

from identilens.charts.cells import heat
from identilens.charts.kit import BOX, Charts, boxes, choose, lines
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.measures.mixing import neighbours, rollout, tracking
from identilens.measures.mixing.own import box_statistics, boxes_by_tag, own_contributions
from identilens.measures.mixing.tracking import find_token
from identilens.runs.result import Finding, Result
from identilens.runs.tables import table_of
from identilens.studies.mixing.tagging import TAG_COLUMNS
from identilens.studies.outcomes import scope

CLASS_TOKENS = ("[CLS]", "<s>", "<cls>")
SEPARATORS = ("[SEP]", "</s>", "<sep>")
"""Names that tokenizers give to the token for the whole text, and to what stands between two texts."""

NEAR = 20
"""Positions to the left and to the right whose context is drawn."""

Measure = Literal["contribution", "standard_error", "norm", "raw_rollout", "effective_rollout"]

_INPUTS = 40
"""Input tokens of a chart of single hidden tokens."""

_SPECIAL = [*CLASS_TOKENS, *SEPARATORS]
KIND = pl.Enum(["encoder", "decoder", "cross"])
_ESTIMATES = ("standard_error", "margin", "norm", "raw_rollout", "effective_rollout")
_FINDING = """\
Of each {kind} hidden state, the token at its own position makes up {own_first:.1%} to {own_last:.1%} (layer {first} \
to {last}, medians over {tokens:token}); another token makes up more in {not_largest:.1%} of the states at layer {last}.
Of the context in a state, {next_first:.0%} to {next_last:.0%} (layer {first} to {last}) comes from the tokens next to \
its own.
Without the token itself, attention rollout correlates with contributions by {raw:.2f} (raw) and {effective:.2f} \
(effective) at layer {last}; 1 would be the same answer.
"""
_TILES = """\
{own_first:.0%} to {own_last:.0%} | of a hidden state is its own token (median, layer {first} to {last})
{not_largest:.0%} | of tokens are not their own largest contributor at layer {last}
"""
_OWN = """\
Contribution is the share of an input token in a hidden state: how strongly the state reacts to small changes of that \
token's input vector, over all tokens 1 in sum (Brunner et al. 2020, Eq. 11). Here only the token at the state's own \
position (Fig. 3). It is sensitivity, not use; shares get smaller with longer texts.
Boxes hold the middle half of all tokens, the line in them is the median. Whiskers reach to the furthest token within \
1.5 times the box's height. Layer l is what the l-th layer gives, from 1.
The typical standard error of a contribution is {typical_error:.1%} of it.
Of each text only these hidden states are looked at: {queries}.
Not largest (Fig. 3b): where another input token contributes more than the token itself, reading the hidden state as \
“this token in context” is least safe. Tokens whose own and another's contribution are nearly equal may fall on either \
side in a sketch.
"""
_NEIGHBOURS = """\
The mean contribution of left and right neighbours, scaled so that a line sums to 1 over layers (Fig. 4a). A line that \
rises says that this distance matters more in late layers, not that it contributes more than others.
"""
_POSITIONS = """\
The total contribution, over all tokens, of what stands so many positions to the left (negative) or right, as a share \
of all context of the layer (Fig. 4b), up to 20 positions away.
"""
_CLASS = """\
The first token stands for the whole text and for no word. What its hidden state takes from each position, over all \
texts, as a share of its context (Fig. 18), counted from itself or from the first separator.
"""
_TOKEN = """\
What one hidden state takes from input tokens, layer by layer (Fig. 19–25): of at most 40, those that contribute \
most; colours end at the largest context.
"""
_SPEECH = """\
Own contribution by part of speech (Fig. 26–37), in the order of the medians at the last layer. A sub-word takes the \
tag of its word; special tokens are their own tag.
"""


@dataclass(frozen=True, kw_only=True)
class Mixing(Result):
    """Contributions of input tokens to hidden tokens.

    Layers are indices into the model's hidden states: layer l is what the l-th layer gives, from 1. The table has one
    row for each text, kind, layer, hidden token and input token, in this order; ``token_names`` says what stands at
    each hidden and each input position, ``tags`` its part of speech, ``tracked`` the token to show, if any.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> text = "The ferry left the harbour before dawn, and nobody could say who had paid."
        >>> mixing = idl.mixing(lens, text, sketch_probes=4, layers=(1, 6), rollouts=False)
        >>> mixing.by_layer()
        shape: (2, 5)
        ┌─────────┬───────┬────────────┬─────────────┬────────┐
        │ kind    ┆ layer ┆ median_own ┆ not_largest ┆ tokens │
        │ ---     ┆ ---   ┆ ---        ┆ ---         ┆ ---    │
        │ enum    ┆ i16   ┆ f64        ┆ f64         ┆ u32    │
        ╞═════════╪═══════╪════════════╪═════════════╪════════╡
        │ encoder ┆ 1     ┆ 0.45196    ┆ 0.0         ┆ 18     │
        │ encoder ┆ 6     ┆ 0.158758   ┆ 0.388889    ┆ 18     │
        └─────────┴───────┴────────────┴─────────────┴────────┘
    """

    analysis: ClassVar = "mixing"
    title: ClassVar = "Mixing"
    schema: ClassVar = {
        "table": {
            "text": pl.Int32,
            "kind": KIND,
            "layer": pl.Int16,
            **dict.fromkeys(("hidden", "input"), pl.Int32),
            "contribution": pl.Float64,
            **dict.fromkeys(_ESTIMATES, pl.Float32),
        },
        "token_names": {
            "text": pl.Int32,
            "kind": KIND,
            "side": pl.Enum(["hidden", "input"]),
            "position": pl.Int32,
            "token": pl.String,
        },
        "tags": TAG_COLUMNS,
        "tracked": {"text": pl.Int32, "position": pl.Int32},
    }

    words: ClassVar = {
        "kind": "Hidden states",
        "median": "Own contribution",
        "not_largest": "Not largest: share of tokens that are not their own largest contributor",
        "share": "Share of the context",
        "group": "Neighbour",
        "offset": "Relative position of the input token",
        "centre": "Counted from",
        "tag": "Part of speech",
        "state": "Hidden token",
    }
    views: ClassVar = {
        "own_contribution": View(
            boxes,
            ("layer",),
            title="Own contribution by layer",
            text=_OWN,
            table="own_boxes",
            also=BOX,
            listed=True,
        ),
        "neighbours": View(
            lines,
            ("layer", "share", "group"),
            title="In which layer neighbours contribute most",
            text=_NEIGHBOURS,
            table="neighbours",
            also=("mean",),
        ),
        "relative_positions": View(
            lines,
            ("offset", "share", "layer"),
            title="Context by relative position",
            text=_POSITIONS,
            table="near",
            also=("pairs",),
        ),
        "class_token": View(
            lines,
            ("offset", "share", "layer"),
            title="Context of the class token",
            text=_CLASS,
            table="class_context",
            also=("texts",),
            choices=("centre",),
            look={"points": False},
        ),
        "token": View(title="One token through the layers", text=_TOKEN, method="tracked_token"),
        "part_of_speech": View(
            boxes,
            ("tag",),
            title="Own contribution by part of speech",
            text=_SPEECH,
            table="speech",
            also=(*BOX, "tokens"),
            choices=("layer",),
        ),
    }

    token_names: pl.DataFrame
    tags: pl.DataFrame
    tracked: pl.DataFrame

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of hidden states in the result, the source's first."""
        return self.table["kind"].unique().sort().to_list()

    @cached_property
    def own_boxes(self) -> pl.DataFrame:
        """Boxes of own contributions with the share not their own largest (Fig. 3a, 3b)."""
        return box_statistics(self.by_token())

    @cached_property
    def neighbours(self) -> pl.DataFrame:
        """In which layer each group of neighbours contributes most (Fig. 4a)."""
        return neighbours.neighbour_groups(self.table)

    @cached_property
    def positions(self) -> pl.DataFrame:
        """Context by relative position at the first, middle and last layer (Fig. 4b)."""
        return neighbours.by_relative_position(self.table)

    @cached_property
    def correlation(self) -> pl.DataFrame:
        """Rollouts against contributions by layer; without rows where there are no rollouts."""
        return rollout.rollout_correlation(self.table.filter(pl.col("kind") != "cross"))

    @cached_property
    def speech(self) -> pl.DataFrame:
        """Boxes by part of speech (Fig. 26–37): tags are those of the source; without rows where there are none."""
        source = self.by_token().filter(kind=self.kinds[0])
        return boxes_by_tag(source, self.tags) if len(self.tags) else pl.DataFrame()

    @cached_property
    def class_context(self) -> pl.DataFrame:
        """What the class token takes from where, counted from itself or a separator, the ``centre`` (Fig. 18).

        Without rows where no text opens with a class token.
        """
        hidden = self.token_names.filter(side="hidden", kind="encoder")
        opening, occurring = set(hidden.filter(position=0)["token"]), set(hidden["token"])
        frames = [pl.DataFrame()]
        for token in [name for name in CLASS_TOKENS if name in opening][:1]:
            for centre in [token, *[name for name in SEPARATORS if name in occurring][:1]]:
                frame = tracking.context_of_token(self.table, self.token_names, token, centre)
                frames.append(frame.filter(kind="encoder").with_columns(centre=pl.lit(centre)))
        return pl.concat(frames, how="diagonal")

    @property
    def near(self) -> pl.DataFrame:
        """Context by relative position up to `NEAR`, with an empty row for the own token, which is no context."""
        near = self.positions.filter(pl.col("offset").abs() <= NEAR)
        centre = near.select("kind", "layer", offset=0).unique(maintain_order=True)
        return pl.concat([near, centre], how="diagonal_relaxed")

    def array(
        self, text: int, kind: str | None = None, measure: Measure = "contribution"
    ) -> Float[np.ndarray, "layer hidden input"]:
        """Return one text's contributions, or another column, as an array [layer, hidden token j, input token i].

        Texts count from 0. Encoder–decoders have three kinds, of which one must be named. Of chosen positions
        (``queries``), j counts these.

        Raises:
            InputError: If the result contains no such text or kind.
        """
        rows = self.table.filter(text=text, kind=self._kind(kind))
        if not len(rows):
            raise InputError(
                f"the result has no text {text}; it has the texts 0 to {self.table['text'].max()}. Texts count from 0."
            )
        shape = [rows[name].n_unique() for name in ("layer", "hidden", "input")]
        return rows[measure].to_numpy().reshape(shape)

    def names(
        self, text: int, kind: str | None = None, side: Literal["hidden", "input"] = "hidden"
    ) -> list[str]:
        """Return the tokens at one text's hidden or input positions."""
        rows = self.token_names.filter(text=text, kind=self._kind(kind), side=side)
        return rows.sort("position")["token"].to_list()

    def by_token(self) -> pl.DataFrame:
        """Return what each token contributes to its own hidden state; see `own_contributions`."""
        return own_contributions(self.table, self.token_names)

    def by_layer(self) -> pl.DataFrame:
        """Return the median own contribution (Brunner Fig. 3a) and the share not their own largest (3b) a layer."""
        return self.own_boxes.select(
            "kind", "layer", pl.col("median").alias("median_own"), "not_largest", "tokens"
        )

    def tracking(self, token: str) -> "Mixing":
        """Return the same result with a token to show through the layers: the first one of that name.

        Raises:
            InputError: If no text contains it, naming some that occur; marks of a word's start or middle may be left
                out.
        """
        hidden = self.token_names.filter(kind=self.kinds[0], side="hidden").sort("text", "position")
        texts = hidden.group_by("text", maintain_order=True).agg("token")
        text, position = find_token(texts["token"].to_list(), token)
        row = {"text": texts["text"][text], "position": position}
        return replace(self, tracked=table_of(self.schema["tracked"], [row]))

    def summary(self) -> Finding:
        """Return how much of a token is still itself, where context comes from, what attention alone would say."""
        kind = self.kinds[0]
        share = (pl.col("standard_error") / pl.col("contribution")).median()
        error = self.table.filter(pl.col("contribution") > 0).select(share).item()
        kept, beside, rollouts = (
            frame.filter(kind=kind).sort("layer")
            for frame in (self.own_boxes, self.positions, self.correlation)
        )
        next_to = beside.filter(pl.col("offset").abs() == 1)
        shares = next_to.group_by("layer", maintain_order=True).agg(pl.col("share").sum())["share"]
        known = rollouts.filter(pl.col("pairs") == "context", pl.col("layer") == kept["layer"][-1])
        return Finding.of(
            _FINDING,
            _TILES,
            kind=kind,
            first=kept["layer"][0],
            last=kept["layer"][-1],
            tokens=kept["tokens"][0],
            own_first=kept["median"][0],
            own_last=kept["median"][-1],
            not_largest=kept["not_largest"][-1],
            next_first=shares.first(),
            next_last=shares.last(),
            typical_error=error,
            queries=scope(self.provenance)["queries"],
            **dict(known.select("rollout", "pearson").iter_rows()),
        )

    def tracked_token(self) -> Charts:
        """Return what some hidden tokens take from the input tokens that contribute most to any, layer by layer."""
        text, positions = self._drawn_tokens()
        names, frames = self.names(text, self.kinds[0]), []
        for position in positions:
            state = f"{position}: {names[position]}"
            rows = tracking.track_token(self.table, self.token_names, position, text)
            rows = rows.with_columns(own=pl.col("position") == position, state=pl.lit(state))
            frames.append(rows)
        rows = pl.concat(frames).with_columns(input=pl.format("{}: {}", "position", "token"))
        most = rows.sort("contribution", descending=True, maintain_order=True).unique(
            "position", keep="first", maintain_order=True
        )
        rows = rows.join(most.head(_INPUTS), on="position", how="semi", maintain_order="left")
        # The own token would take all the colour.
        largest: Any = rows.filter(~pl.col("own"))["contribution"].max()
        chart = heat(
            rows.select("state", "layer", "input", "contribution", "standard_error"),
            "layer",
            "input",
            "contribution",
            domain=(0.0, largest or 1.0),
            also=("standard_error",),
            title=f"One token through the layers (text {text})",
        )
        return {"tracked_token": choose(chart, rows, "state", "Hidden token")}

    def _drawn_tokens(self) -> tuple[int, list[int]]:
        """Return a text and the positions to draw: the tracked token, or words of the first text.

        Those are the words that kept least and most of themselves at the last layer.
        """
        if len(self.tracked):
            return self.tracked["text"][0], [self.tracked["position"][0]]
        layer, text = pl.col("layer"), pl.col("text")
        tokens = self.by_token().filter(kind=self.kinds[0])
        tokens = tokens.filter(layer == layer.max(), text == text.min()).sort("contribution")
        named = ~pl.col("token").is_in(_SPECIAL) & pl.col("token").str.contains(r"\p{L}{3}")
        words = tokens.filter(named)["position"].to_list() or tokens["position"].to_list()
        return tokens["text"][0], list(dict.fromkeys([words[0], words[-1]]))

    def _kind(self, kind: str | None) -> str:
        if kind is None and len(self.kinds) == 1:
            return self.kinds[0]
        if kind not in self.kinds:
            raise InputError(
                f"expected one of the kinds {', '.join(self.kinds)}; got {kind!r}. Pass kind=..."
            )
        return kind
