"""Rank and nullity of T against text length: the protocol of Bhardwaj et al. 2021, Fig. 2 and 6."""

from collections.abc import Sequence

import polars as pl
import torch

from identilens.errors import InputError
from identilens.measures.attention.rank import numerical_rank
from identilens.models.lens import Lens
from identilens.runs.progress import Progress


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
