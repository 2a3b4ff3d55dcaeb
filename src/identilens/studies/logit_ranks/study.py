"""Texts in, results out: could queries and keys of the head's size give the alternatives (Bhardwaj et al., Fig. 5)."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import torch

from identilens.errors import InputError
from identilens.measures.attention.logits import logit_rank_study
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.results.logit_ranks import LOGIT_RANK_COLUMNS, LogitRanks
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance
from identilens.studies.alternatives.search import LOGIT_ERROR
from identilens.studies.alternatives.study import numbers


def logit_ranks(
    lens: Lens,
    texts: Any,
    *,
    layers: Sequence[int] | int | None = None,
    heads: Sequence[int] | int | None = None,
    count: int = 1000,
    lengths: tuple[float, float] = (2.0, 4.0),
    max_length: int | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> LogitRanks:
    """Return the least logit ranks of random alternatives, beside what the head could produce.

    The protocol of Bhardwaj et al. 2021, Fig. 5: alternatives with coefficients uniform on [−10, 10] in LN([T, 1]),
    rows scaled to stay on the simplex; one is held at a time. Bidirectional attention only: a mask leaves the
    hidden logits free.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all when None.
        heads: Heads, counted from 0; all when None.
        count: Alternatives of each head (the paper: 1,000).
        lengths: Texts of so many times d_v tokens take part, from and up to; the paper takes 2 to 4.
        max_length: Cut longer texts to this many tokens.
        seed: Of the random numbers.
        out: Folder to fill head by head; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (heads done, heads in all).

    Raises:
        InputError: For texts or options that cannot be used, no text of a fitting length, or masked attention.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    items = lens.read(texts, max_length)
    sites = lens.sites(items[0])
    if all(site.kind != "encoder" for site in sites):
        raise InputError(
            "the model has no bidirectional attention: a mask leaves the hidden logits, and the rank, open."
        )
    chosen = list(chosen_heads(sites, numbers(layers), numbers(heads), "encoder"))
    low, high = lengths
    units = [
        (text, site, head)
        for text, item in enumerate(items)
        for site, head in chosen
        if low * site.output_projection.shape[1] <= item.length <= high * site.output_projection.shape[1]
    ]
    if not units:
        d_v = chosen[0][0].output_projection.shape[1]
        raise InputError(
            f"no text has {low * d_v:g} to {high * d_v:g} tokens ({low:g} to {high:g} times d_v = {d_v}); the longest "
            f"has {max(item.length for item in items)}. Give longer texts, or other lengths=(from, to)."
        )
    settings = {
        "layers": layers, "heads": heads, "count": count, "lengths": lengths, "max_length": max_length
    }  # fmt: skip
    identity = [item.identity for item in items]
    record = provenance("logit ranks", model=lens.facts, texts=identity, settings=settings, seed=seed)
    tables = run_parts(
        record, [1] * len(units), lambda part: {"table": _row(lens, items, *units[part], count, seed + part)},
        {"table": whole}, out=out, resume=resume, overwrite=overwrite, progress=progress,
    )  # fmt: skip
    return LogitRanks(tables["table"], record)


def _row(lens: Lens, items: list[Item], text: int, site: Site, head: int, count: int, seed: int) -> pl.DataFrame:
    seen = read_head(lens, items[text], site.layer, head, site.kind)
    if seen.visible is not None:
        raise InputError(f"layer {site.layer} hides keys from some queries (a window), so that its logit rank is open.")
    weights = seen.attention
    if weights.min() <= 0 and seen.logit_error <= LOGIT_ERROR:
        # Sharp attention: weights too small for the model's precision still have logits that are known.
        weights = seen.recomputed
    generator = torch.Generator().manual_seed(seed)
    study = logit_rank_study(weights, seen.projected, seen.d_k, count=count, generator=generator)
    ranks = study.ranks.double()
    row = (
        text, site.layer, head, site.kind, study.seq_len, seen.d_k, seen.values.shape[1], study.simplex_nullity,
        study.original_rank, int(ranks.min()), float(ranks.mean()), int(ranks.max()), study.realisable_share, count,
        study.mean_total_variation, study.output_error,
    )  # fmt: skip
    return pl.DataFrame([row], schema=LOGIT_RANK_COLUMNS, orient="row")
