"""Whether queries and keys of a head's size could give its alternatives, and ranks of T by length (Bhardwaj 2021)."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import torch

from identilens.errors import InputError
from identilens.lab.drawing import seeded
from identilens.measures.attention.logits import logit_rank_study
from identilens.measures.attention.rank import numerical_rank
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens


def logit_ranks(
    lens: Lens,
    texts: Any,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    count: int = 1000,
    lengths: tuple[float, float] = (2.0, 4.0),
    seed: int = 0,
) -> pl.DataFrame:
    """Return the least logit ranks of random alternatives, and the ranks that the head can produce (Fig. 5).

    Alternatives have coefficients uniform on [−10, 10] in LN([T, 1]), and their rows are scaled to stay on the
    simplex. Bidirectional attention only: under a mask, the hidden logits are free.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        count: Number of alternatives of each head.
        lengths: Shortest and longest text that is used, in multiples of d_v.
        seed: Seed of the random numbers.

    Returns:
        One row a text and head; the original rank is that of the head's own logits.

    Raises:
        InputError: For texts that cannot be read, a model without bidirectional attention, or no text of these lengths.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> ranks = idl.lab.logit_ranks(lens, idl.examples()[1], layers=[3], heads=[5, 6], count=10)
        >>> ranks.select("layer", "head", "d_k", "realisable_share").rows()
        [(3, 5, 32, 0.0), (3, 6, 32, 0.0)]
    """
    rows = []
    for text, item in enumerate(lens.read(texts)):
        for site, number in chosen_heads(lens.sites(item), layers, heads, "encoder"):
            d_v = site.output_projection.shape[1]
            if not lengths[0] * d_v <= item.length <= lengths[1] * d_v:
                continue
            head = lens.layer(item, site.layer, "encoder").head(number)
            generator = seeded(seed + len(rows))
            measured = logit_rank_study(
                head.attention, head.projected, head.d_k, count=count, generator=generator
            )
            ranks = measured.ranks.double()
            rows.append(
                {
                    "text": text,
                    "layer": site.layer,
                    "head": number,
                    "n_key": measured.seq_len,
                    "d_k": head.d_k,
                    "d_v": d_v,
                    "simplex_nullity": measured.simplex_nullity,
                    "original_rank": measured.original_rank,
                    "lowest_rank": int(ranks.min()),
                    "mean_rank": float(ranks.mean()),
                    "highest_rank": int(ranks.max()),
                    "realisable_share": measured.realisable_share,
                    "alternatives": count,
                    "mean_total_variation": measured.mean_total_variation,
                    "output_error": measured.output_error,
                }
            )
    if not rows:
        raise InputError(
            f"no text has {lengths[0]:g} to {lengths[1]:g} times as many tokens as values have dimensions. "
            "Give longer texts, or other lengths."
        )
    return pl.DataFrame(rows)


def rank_by_length(
    lens: Lens,
    texts: Sequence[str],
    *,
    lengths: Sequence[int],
    per_length: int = 100,
    seed: int = 0,
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
    generator = seeded(seed)
    rows: list[dict[str, int]] = []
    for length in lengths:
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
    return pl.DataFrame(rows)
