"""Bhardwaj et al. 2021: Table 1, Figures 2, 5 and 6."""

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch

from identilens.charts.kit import rule, scatter
from identilens.errors import InputError
from identilens.lab.drawing import seeded
from identilens.lab.encoder.logit_ranks import logit_ranks, rank_by_length
from identilens.lab.encoder.readers import read_part
from identilens.lab.encoder.settings import HeadsName
from identilens.lab.encoder.sweep.study import sweep
from identilens.lab.encoder.tasks import TASKS
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.reproduce.options import Figure5Settings, RankSettings, Table1Settings
from identilens.reproduce.record import Reproduction
from identilens.runs.settings import Settings
from identilens.runs.tables import markdown_table

LENGTHS = tuple(range(16, 513, 16))
"""Text lengths of Figures 2 and 6."""
TOKENS = (66, 128)
"""Least and largest number of tokens of the reviews of Figure 5."""


def table1(settings: Table1Settings, out: Path, **run: Any) -> Reproduction:
    """Train Con and Add encoders for every cell; the run is saved to ``sweep`` in the folder."""
    result = sweep(settings=settings, out=out / "sweep", **run)
    cells = result.table_one()
    named = cells.rename({size: f"d_k = {size}" for size in cells.columns[3:]})
    return Reproduction(
        settings.recorded(),
        {"runs": result.table, "table1": cells},
        f"{markdown_table(named)}\n\n{result.summary().text}",
        result.charts(),
    )


def encoder_of(model: Path, heads: HeadsName) -> Lens:
    """Return a trained encoder.

    Raises:
        InputError: If the model is not an identifiable encoder with these heads.
    """
    lens = load(model)
    if getattr(lens.model.config, "heads", None) != heads:
        raise InputError(
            f"{model} is not an encoder with heads={heads!r}. Train one with identilens lab encoder train --task imdb "
            f"--heads {heads}."
        )
    return lens


def reviews(data: Path) -> list[str]:
    """Return the reviews of IMDB's test part."""
    return [str(text) for text, _ in read_part(TASKS["imdb"], data, "test")]


def used_settings(settings: Settings, lens: Lens) -> dict[str, Any]:
    """Return the settings with the encoder's sizes and digest, for the record."""
    names = ("heads", "d_k", "d_v", "hidden_size")
    sizes = {name: getattr(lens.model.config, name) for name in names}
    return {**settings.recorded(), "encoder": sizes, "parameters (digest)": lens.digest}


def ranks(
    heads: HeadsName, published: str, settings: RankSettings, _: Path, **run: Any
) -> Reproduction:
    """Return rank and nullity of T in the first head, on reviews clipped to each length (Figure 2, Con; 6, Add)."""
    lens = encoder_of(settings.model, heads)
    ranks = rank_by_length(
        lens,
        reviews(settings.data),
        lengths=LENGTHS,
        per_length=settings.reviews,
        seed=settings.seed,
    )
    rank, nullity, d_v = pl.col("rank"), pl.col("nullity"), int(ranks["d_v"][0])
    by_length = (
        ranks.group_by("seq_len")
        .agg(
            rank.min().alias("lowest rank"),
            rank.mean().alias("mean rank"),
            nullity.mean().alias("mean nullity"),
            nullity.max().alias("highest nullity"),
            (nullity == 0).mean().alias("share identifiable"),
        )
        .sort("seq_len")
    )
    full = ranks.filter(nullity == (pl.col("seq_len") - d_v).clip(0))
    # Lengths before the first with a null space.
    reached = by_length.filter((pl.col("highest nullity") == 0).cum_prod().cast(pl.Boolean))
    reach = f"up to d_s = {reached['seq_len'].max()}" if len(reached) else "at no length"
    findings = (
        f"{published} Measured: rank(T) = min(d_s, {d_v}) in {len(full):,} of {len(ranks):,} reviews; nullity 0 "
        f"in every review {reach}; nullity at most {ranks['nullity'].max()}.\n\n{markdown_table(by_length)}"
    )
    named = ranks.rename({"rank": "rank(T)", "nullity": "dim LN(T)"})
    chart = scatter(
        named.unpivot(["rank(T)", "dim LN(T)"], index="seq_len"),
        "seq_len",
        "value",
        "variable",
        labels={"seq_len": "Tokens, d_s", "value": "Dimension", "variable": ""},
        title=f"Rank and nullity of T by text length; dashed: d_v = {d_v}",
    )
    return Reproduction(
        used_settings(settings, lens),
        {"ranks": ranks, "by_length": by_length},
        findings,
        {"ranks": rule(chart, y=d_v)},
    )


def figure5(settings: Figure5Settings, _: Path, **run: Any) -> Reproduction:
    """Return Figure 5 for a trained Con encoder: its first head on random reviews of 66 to 128 tokens.

    Raises:
        InputError: If there are too few such reviews.
    """
    lens = encoder_of(settings.model, "concat")
    encoded = lens.tokenizer(reviews(settings.data))["input_ids"]
    ids = [tokens for tokens in encoded if TOKENS[0] <= len(tokens) <= TOKENS[1]]
    if len(ids) < settings.reviews:
        raise InputError(
            f"{len(ids)} reviews have {TOKENS[0]} to {TOKENS[1]} tokens; {settings.reviews} are needed."
        )
    order = torch.randperm(len(ids), generator=seeded(settings.seed))
    config = lens.model.config
    table = logit_ranks(
        lens,
        [ids[index] for index in order[: settings.reviews].tolist()],
        layers=[0],
        heads=[0],
        count=settings.count,
        lengths=(TOKENS[0] / config.d_v, TOKENS[1] / config.d_v),
        seed=settings.seed,
    )
    lacking = (table["n_key"] - table["lowest_rank"]).max()
    within = round((table["realisable_share"] * table["alternatives"]).sum())
    findings = (
        "Published: with d_k = 64 all logit matrices of the alternatives are of full row rank, none of rank ≤ d_k. "
        f"Measured: {len(table)} reviews, {settings.count:,} alternatives each, with ranks from n − {lacking} to n − 1 "
        f"in texts of n tokens; {within:,} of {len(table) * settings.count:,} have a rank of at most d_k = "
        f"{config.d_k}. One constant per row is free in the logits, so n − 1 is the largest possible least rank."
    )
    chart = scatter(
        table,
        "n_key",
        "mean_rank",
        span=("lowest_rank", "highest_rank"),
        labels={"n_key": "Keys (tokens)", "mean_rank": "Least logit rank of alternatives"},
        title=f"Least logit rank of alternatives by length; dashed: d_k = {config.d_k}",
    )
    return Reproduction(
        used_settings(settings, lens),
        {"logit_ranks": table},
        findings,
        {"logit_ranks": rule(chart, y=config.d_k)},
    )


FIGURES = {
    "bhardwaj2021-table1": table1,
    "bhardwaj2021-figure2": partial(
        ranks,
        "concat",
        "Published: rank(T) = min(d_s, 64), so that the nullity grows linearly beyond d_s = 64.",
    ),
    "bhardwaj2021-figure5": figure5,
    "bhardwaj2021-figure6": partial(ranks, "add", "Published: nullity 0 up to about d_s = 380."),
}
