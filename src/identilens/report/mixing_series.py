"""What the figures of a mixing analysis show, as plain frames: the HTML report and the paper figures share it."""

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from identilens.errors import InputError
from identilens.measures.mixing import (
    box_statistics,
    boxes_by_tag,
    by_relative_position,
    context_of_token,
    find_token,
    neighbour_groups,
    rollout_correlation,
)
from identilens.results import Mixing

CLASS_TOKENS = ("[CLS]", "<s>", "<cls>")
SEPARATORS = ("[SEP]", "</s>", "<sep>")
"""Names that tokenizers give to the token for the whole text, and to what stands between two texts."""

_AGREES = 0.8
"""Correlation from which two pictures are called much the same."""

_SPECIAL = {*CLASS_TOKENS, *SEPARATORS}
_MEASURES = {"contribution": "contribution", "raw": "raw_rollout", "effective": "effective_rollout"}


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
class MixingSeries:
    """All that the figures over all texts show.

    Attributes:
        kinds: Kinds of hidden states that have a token of their own (all but "cross").
        own: Boxes of own contributions with the share not their own largest (Fig. 3a, 3b).
        neighbours: In which layer each group of neighbours contributes most (Fig. 4a).
        positions: Context by relative position at the first, middle and last layer (Fig. 4b).
        class_context: Fig. 18; empty where no text opens with a class token.
        speech: Boxes by part of speech (Fig. 26–37); None without tags.
        own_medians: Median own share by layer in contributions and in rollouts: kind, layer, measure, median.
        correlation: Rollouts against contributions by layer; without rows where the result has no rollouts.
    """

    kinds: list[str]
    own: pl.DataFrame
    neighbours: pl.DataFrame
    positions: pl.DataFrame
    class_context: list[ClassContext]
    speech: pl.DataFrame | None
    own_medians: pl.DataFrame
    correlation: pl.DataFrame


def mixing_series(mixing: Mixing) -> MixingSeries:
    """Return what the figures of a result show, worked out once."""
    own = mixing.own()
    return MixingSeries(
        kinds=[kind for kind in mixing.kinds if kind != "cross"],
        own=box_statistics(own),
        neighbours=neighbour_groups(mixing.table),
        positions=by_relative_position(mixing.table),
        class_context=list(_class_context(mixing)),
        speech=None if mixing.tags is None else boxes_by_tag(own, mixing.tags),
        own_medians=_own_medians(mixing),
        correlation=rollout_correlation(mixing.table),
    )


def finding(mixing: Mixing, series: MixingSeries) -> list[str]:
    """Return what came out, in plain sentences."""
    sentences = mixing.summary().splitlines()
    for kind in series.kinds:
        rows = series.positions.filter(pl.col("kind") == kind)
        near = rows.filter(pl.col("offset").abs() == 1).group_by("layer").agg(pl.col("share").sum()).sort("layer")
        if len(near) > 1:
            first, last = near.row(0), near.row(-1)
            sentences.append(
                f"Of the context in {'an' if kind == 'encoder' else 'a'} {kind} hidden state, {100 * first[1]:.0f} % "
                f"comes from the tokens next to it at layer {first[0]} and {100 * last[1]:.0f} % at layer {last[0]}."
            )
    return sentences + [sentence for kind in series.kinds for sentence in _rollout_finding(series, kind)]


def locate(mixing: Mixing, token: str) -> tuple[int, int]:
    """Return the first text that holds a token among its (first kind of) hidden tokens, and its position there.

    Raises:
        InputError: If no text holds it, naming some that occur.
    """
    return find_token(token_names(mixing, mixing.kinds[0]), token)


def token_names(mixing: Mixing, kind: str, side: str = "hidden") -> list[list[str]]:
    """Return the tokens of every text, in order."""
    here = mixing.tokens.filter((pl.col("kind") == kind) & (pl.col("side") == side)).sort("text", "position")
    return [names for _, names in here.group_by("text", maintain_order=True).agg("token").iter_rows()]


def telling_tokens(mixing: Mixing, text: int) -> list[int]:
    """Return positions worth drawing: the class token, the word that kept least of itself and the one that kept most.

    Args:
        mixing: The result.
        text: Which text.
    """
    kind = mixing.kinds[0]
    own = mixing.own().filter((pl.col("text") == text) & (pl.col("kind") == kind))
    last = own.filter(pl.col("layer") == pl.col("layer").max())
    special = pl.col("token").is_in(list(_SPECIAL))
    words = last.filter(~special & pl.col("token").str.contains(r"\p{L}{3}")).sort("contribution")
    chosen = last.filter(pl.col("token").is_in(list(CLASS_TOKENS)))["position"].to_list()[:1]
    chosen += [words["position"][place] for place in (0, -1)] if len(words) else []
    return list(dict.fromkeys(chosen)) or [0]


def _rollout_finding(series: MixingSeries, kind: str) -> Iterator[str]:
    known = (pl.col("kind") == kind) & (pl.col("pairs") == "context") & pl.col("pearson").is_not_null()
    wide = series.correlation.filter(known).pivot("rollout", index="layer", values="pearson").sort("layer")
    if not {"raw", "effective"} <= set(wide.columns):
        return
    at = [
        f"{row['raw']:.2f} (raw) and {row['effective']:.2f} (effective) at layer {row['layer']}"
        for row in wide[[0, -1]].iter_rows(named=True)
    ]
    said = "much the same" if min(wide.row(-1)[1:]) >= _AGREES else "something else"
    yield (
        f"At the last layer attention alone would have said {said} about which context is mixed into {kind} hidden "
        f"states: without the own token, attention rollout correlates with contributions at "
        f"{' and '.join(dict.fromkeys(at))}."
    )


def _class_context(mixing: Mixing) -> Iterator[ClassContext]:
    hidden = mixing.tokens.filter((pl.col("side") == "hidden") & (pl.col("kind") == "encoder"))
    opening = set(hidden.filter(pl.col("position") == 0)["token"])
    held = set(hidden["token"])
    token = next((name for name in CLASS_TOKENS if name in opening), None)
    if token is None:
        return
    separator = next((name for name in SEPARATORS if name in held), None)
    for centre in (token, separator):
        if centre is not None:
            try:
                frame = context_of_token(mixing.table, mixing.tokens, token, centre)
            except InputError:
                # No text holds both of them and something beside.
                continue
            yield ClassContext(token, centre, frame.filter(pl.col("kind") == "encoder"))


def _own_medians(mixing: Mixing) -> pl.DataFrame:
    own = mixing.table.filter((pl.col("kind") != "cross") & (pl.col("hidden") == pl.col("input")))
    medians = own.group_by("kind", "layer").agg(
        pl.col(column).cast(pl.Float64).median().alias(name) for name, column in _MEASURES.items()
    )
    return (
        medians.unpivot(index=["kind", "layer"], variable_name="measure", value_name="median")
        .drop_nulls("median")
        .sort("kind", "measure", "layer")
    )
