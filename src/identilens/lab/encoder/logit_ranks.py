"""Whether queries and keys of the head's size could give the alternatives (Bhardwaj et al. 2021, Fig. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import polars as pl
import torch

from identilens.charts.kit import AnyChart, rule, scatter
from identilens.charts.views import View
from identilens.errors import InputError
from identilens.lab.encoder.settings import LogitRankSettings
from identilens.measures.attention.logits import logit_rank_study
from identilens.measures.attention.rank import numerical_rank
from identilens.models.lens import Lens
from identilens.runs.progress import Progress
from identilens.runs.result import Finding, Result
from identilens.runs.study import Output, study_function
from identilens.runs.tables import HEAD, integers, table_of
from identilens.studies.heads import HeadStudy, PartsByText, Place, TextHeads
from identilens.studies.items import read_items

_FINDING = """\
{realisable:.1%} of {alternatives:,} random alternatives of {maps:attention map} have logits of rank at most d_k, so \
that queries and keys of this size could produce them.
Their mean rank is {rank_share:.1%} of the largest possible rank, the number of keys less one.
"""
_TILES = """\
{realisable:.1%} | of the alternatives have logits of rank at most d_k
{rank_share:.1%} | mean share of full rank
"""
_RANKS = ("lowest_rank", "highest_rank")


def _with_limits(frame: pl.DataFrame, *columns: str, **look: Any) -> AnyChart:
    """Return ranks, mean and range, by the number of keys, with the largest rank of each d_k."""
    chart = scatter(frame, *columns, span=_RANKS, **look)
    for d_k in frame["d_k"].unique().sort():
        chart = rule(chart, y=d_k, label=f"d_k = {d_k}")
    return chart


@dataclass(frozen=True, kw_only=True)
class LogitRanks(Result):
    """Least logit ranks of random alternatives (Bhardwaj et al. 2021, Fig. 5).

    Attributes:
        table: One row for each text and head.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.lab.logit_ranks(lens, idl.examples()[1], layers=3, heads=(5, 6), count=10)
        >>> result.table.select("layer", "head", "d_k", "alternatives", "realisable_share")
        shape: (2, 5)
        ┌───────┬──────┬─────┬──────────────┬──────────────────┐
        │ layer ┆ head ┆ d_k ┆ alternatives ┆ realisable_share │
        │ ---   ┆ ---  ┆ --- ┆ ---          ┆ ---              │
        │ i64   ┆ i64  ┆ i64 ┆ i64          ┆ f64              │
        ╞═══════╪══════╪═════╪══════════════╪══════════════════╡
        │ 3     ┆ 5    ┆ 32  ┆ 10           ┆ 0.0              │
        │ 3     ┆ 6    ┆ 32  ┆ 10           ┆ 0.0              │
        └───────┴──────┴─────┴──────────────┴──────────────────┘
    """

    analysis: ClassVar = "lab encoder logit-ranks"
    title: ClassVar = "Logit ranks of alternatives"
    schema: ClassVar = {
        "table": {
            **HEAD,
            **integers("n_key", "d_k", "d_v", "simplex_nullity", "original_rank", "lowest_rank"),
            "mean_rank": pl.Float64,
            "highest_rank": pl.Int64,
            "realisable_share": pl.Float64,
            "alternatives": pl.Int64,
            "mean_total_variation": pl.Float64,
            "output_error": pl.Float64,
        }
    }

    words: ClassVar = {
        "n_key": "Keys (tokens)",
        "mean_rank": "Least logit rank of alternatives",
    }
    views: ClassVar = {
        "logit_rank_by_length": View(
            _with_limits,
            ("n_key", "mean_rank", "layer"),
            title="Least logit rank of alternatives by length",
            text="Means and ranges over alternatives. Queries and keys give logits of rank d_k at most; "
            "the largest possible rank is the number of keys less one.",
            also=(*_RANKS, "d_k"),
        ),
        "by_layer": View(title="Means by layer", table="by_layer", listed=True),
    }

    def by_layer(self) -> pl.DataFrame:
        """Return the means of each layer over texts and heads."""
        groups = self.table.drop("text", "head").group_by("kind", "layer")
        return groups.mean().sort("layer")

    def summary(self) -> Finding:
        """Return how many alternatives queries and keys could give, and how high ranks are."""
        count, drawn = pl.col("alternatives"), self.table["alternatives"].sum()
        numbers = self.table.select(
            realisable=(pl.col("realisable_share") * count).sum() / drawn,
            rank_share=(pl.col("mean_rank") / (pl.col("n_key") - 1)).mean(),
        ).row(0, named=True)
        return Finding.of(_FINDING, _TILES, alternatives=drawn, maps=len(self.table), **numbers)


class LogitRankStudy(HeadStudy[LogitRankSettings, LogitRanks]):
    """Compute the least logit ranks of random alternatives, and compare them with the ranks that the head can produce.

    The protocol of Bhardwaj et al. 2021, Fig. 5: alternatives have coefficients uniform on [−10, 10] in LN([T, 1]),
    and their rows are scaled to stay on the simplex. One alternative is in memory at a time. Bidirectional attention
    only: under a mask, the hidden logits are free.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, no text of a fitting length, or masked attention.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> result = idl.lab.logit_ranks(lens, idl.examples()[1], layers=3, heads=5, count=10)
        >>> result
        LogitRanks: 0.0 % of 10 random alternatives of ...
    """

    name = "lab encoder logit-ranks"
    settings_type = LogitRankSettings
    result_type = LogitRanks

    def __init__(self, lens: Lens, texts: Any, settings: LogitRankSettings) -> None:
        self.settings = settings
        items = read_items(lens, texts, settings.max_length)
        if all(site.kind != "encoder" for site in lens.sites(items[0])):
            raise InputError(
                "the model has no bidirectional attention: under a mask, hidden logits are free and the rank is open."
            )
        whole, (low, high) = TextHeads.of(lens, items, settings, "encoder"), settings.lengths

        def fitting(text: int) -> list[Sequence[Place]]:
            length = items.lengths[text]
            return [
                [place]
                for place in whole.places(text)
                if low * _d_v(place) <= length <= high * _d_v(place)
            ]

        self.lens, self.items = lens, items
        self.heads = replace(whole, parts=PartsByText(len(items), fitting))
        if not self.heads.parts:
            raise InputError(
                f"no text has {low:g} to {high:g} times as many tokens as values have dimensions; the longest has "
                f"{max(items.lengths)}. Give longer texts, or other lengths."
            )

    def run(self, part: int) -> Output:
        """Return the row of one head on one text."""
        (place,) = self.heads.parts[part]
        head = self.heads.read(place)
        if head.visible is not None:
            raise InputError(
                f"layer {head.layer} hides keys from some queries (a window), so its logit rank is open."
            )
        generator = torch.Generator().manual_seed(self.settings.seed + part)
        measured = logit_rank_study(
            head.attention,
            head.projected,
            head.d_k,
            count=self.settings.count,
            generator=generator,
        )
        ranks = measured.ranks.double()
        row = {
            **place.row,
            "n_key": measured.seq_len,
            "d_k": head.d_k,
            "d_v": _d_v(place),
            "simplex_nullity": measured.simplex_nullity,
            "original_rank": measured.original_rank,
            "lowest_rank": int(ranks.min()),
            "mean_rank": float(ranks.mean()),
            "highest_rank": int(ranks.max()),
            "realisable_share": measured.realisable_share,
            "alternatives": self.settings.count,
            "mean_total_variation": measured.mean_total_variation,
            "output_error": measured.output_error,
        }
        return Output({"table": table_of(LogitRanks.schema["table"], [row])})


def _d_v(place: Place) -> int:
    return place.site.output_projection.shape[1]


logit_ranks = study_function(LogitRankStudy, "logit_ranks")


def rank_by_length(
    lens: Lens,
    texts: Sequence[str],
    *,
    lengths: Sequence[int],
    per_length: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> pl.DataFrame:
    """Return rank(T) and dim LN(T) of the first layer's first head on texts clipped to given lengths, one row a text.

    For each length d_s (special tokens included), ``per_length`` texts with at least d_s tokens are chosen at random
    and clipped to d_s tokens before they enter the model (section 6, "Numerical rank"). Measure and tolerance are those
    of the audit.

    Returns:
        Columns seq_len, text (index into ``texts``), d_v, rank, nullity, simplex_nullity.

    Raises:
        InputError: If a length is above the model's limit, or there are fewer than ``per_length`` texts of it.
    """
    ids = lens.tokenizer(list(texts), truncation=True)["input_ids"]
    generator = torch.Generator().manual_seed(seed)
    rows: list[dict[str, int]] = []
    for done, length in enumerate(lengths, 1):
        fitting = [index for index, tokens in enumerate(ids) if len(tokens) >= length]
        if len(fitting) < per_length:
            raise InputError(
                f"{len(fitting)} texts have {length} tokens or more; {per_length} are needed. "
                "Give more texts, shorter lengths, or a smaller per_length."
            )
        order = torch.randperm(len(fitting), generator=generator)[:per_length].tolist()
        chosen = [fitting[index] for index in order]
        captured = lens.capture([ids[index][:length] for index in chosen])
        for index, text in zip(chosen, captured, strict=True):
            head = next(text.layers[0].heads)
            measured = numerical_rank(head.projected)
            rows.append(
                {
                    "seq_len": length,
                    "text": index,
                    "d_v": head.values.shape[1],
                    "rank": int(measured.rank),
                    "nullity": int(measured.nullity),
                    "simplex_nullity": int(measured.simplex_nullity),
                }
            )
        if progress:
            progress(done, len(lengths), "lengths")
    return pl.DataFrame(rows)
