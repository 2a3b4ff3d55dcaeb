"""Figure 5 of Bhardwaj et al. 2021: least logit rank of random alternatives, and what the head can produce."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from annotated_types import Ge

from identilens.errors import InputError
from identilens.lab.encoder.logit_ranks.study import logit_ranks
from identilens.models.lens import Lens
from identilens.reproduce.bhardwaj2021_reviews import ReviewSettings, encoder_facts, reviews, trained_encoder
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.progress import Progress

LENGTHS = (66, 128)

PUBLISHED = "Published: with d_k = 64 all logit matrices of the alternatives are of full row rank, none of rank ≤ d_k."


@dataclass(frozen=True, kw_only=True)
class Figure5Settings(ReviewSettings):
    """The encoder, and the numbers of reviews and alternatives.

    Attributes:
        reviews: Number of reviews of 66 to 128 tokens.
        count: Number of alternatives of each review.
    """

    reviews: Annotated[int, Ge(1)] = 63
    count: Annotated[int, Ge(1)] = 1000


def make_figure5(settings: Figure5Settings, out: Path, *, progress: Progress | None, **run: bool) -> Reproduction:
    """Least logit rank of random alternatives, compared with what queries and keys can produce."""
    lens = trained_encoder(settings, "concat", out, progress=progress, **run)
    chosen = {name: getattr(settings, name) for name in ("reviews", "count", "seed")}
    return figure5(lens, reviews(settings.data), **chosen, progress=progress)


def figure5(
    lens: Lens, texts: Sequence[str], *, reviews: int = 63, count: int = 1000, seed: int = 0,
    progress: Progress | None = None,
) -> Reproduction:  # fmt: skip
    """Return Figure 5 for a trained Con encoder: its first head on random reviews of 66 to 128 tokens.

    Raises:
        InputError: If there are too few such reviews.
    """
    ids = [tokens for tokens in lens.tokenizer(list(texts))["input_ids"] if LENGTHS[0] <= len(tokens) <= LENGTHS[1]]
    if len(ids) < reviews:
        raise InputError(f"{len(ids)} reviews have {LENGTHS[0]} to {LENGTHS[1]} tokens; {reviews} are needed.")
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))[:reviews].tolist()
    result = logit_ranks(
        lens, [ids[index] for index in order], layers=0, heads=0, count=count, seed=seed, progress=progress,
        lengths=tuple(length / lens.model.config.d_v for length in LENGTHS),
    )  # fmt: skip
    table = result.table
    lacking = int((table["n_key"] - 1 - table["lowest_rank"]).top_k(1)[0])
    within = round(float((table["realisable_share"] * table["alternatives"]).sum()))
    findings = (
        f"{PUBLISHED} Measured: {len(table)} reviews, {count:,} alternatives each, with ranks from n − {1 + lacking} "
        f"to n − 1 in texts of n tokens; {within:,} of {len(table) * count:,} have a rank of at most d_k = "
        f"{lens.model.config.d_k}. One constant per row is free in the logits, so n − 1 is the largest possible least "
        "rank."
    )
    settings = {**encoder_facts(lens), "tokens": f"{LENGTHS[0]} to {LENGTHS[1]}", "alternatives per review": count}
    return Reproduction(
        "bhardwaj2021-figure5", "Bhardwaj et al. 2021, Figure 5", settings, {"logit_ranks": table}, findings,
        {"logit_ranks": result.charts()["logit_rank_by_length"]}, seed,
    )  # fmt: skip


RECIPE = Recipe(Figure5Settings, make_figure5, "reviews")
