"""Attention rollout: an estimate of mixing from attention alone (Abnar & Zuidema 2020), raw and effective."""

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor


def attention_rollout(
    weights: Float[Tensor, "layer query key"],
) -> Float[Tensor, "layer query key"]:
    """Return, for each layer, how much of each input token reaches each hidden token along attention paths.

    The attention of a layer (see `mean_over_heads`) and the residual connection count half each. Rows are scaled to sum
    to 1, and layers are multiplied:

        R_l = (A_l / 2 + I / 2) R_{l−1},   R_0 = I

    Rows of R sum to 1, like contributions. Values, norms and feed-forward layers are not used.

    Examples:
        >>> import torch
        >>> from identilens.measures.mixing.rollout import attention_rollout
        >>> weights = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]).repeat(2, 1, 1)
        >>> attention_rollout(weights)[-1]
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500]])
    """
    n = weights.shape[-1]
    identity = torch.eye(n).to(weights)
    reached, rolled = identity, []
    for layer in weights:
        step = 0.5 * layer / layer.sum(-1, keepdim=True) + 0.5 * identity
        reached = step @ reached
        rolled.append(reached)
    return torch.stack(rolled) if rolled else weights


def mean_over_heads(weights: Float[Tensor, "head query key"]) -> Float[Tensor, "query key"]:
    """Return the mean absolute weights of a layer over its heads, raw or effective, with rows scaled to sum to 1.

    Rows of effective attention can have negative entries and any sum, even about 0. A rollout measures how much is
    passed on, not its sign, like the norm of a Jacobian. So absolute values are taken before heads are averaged
    (otherwise heads would cancel), and rows are scaled by their sums. If a head's row is zero, only the other heads
    count. A query whose effective attention is zero in every head passes on only its own token.

    Examples:
        >>> import torch
        >>> from identilens.measures.mixing.rollout import mean_over_heads
        >>> mean_over_heads(torch.tensor([[[1.0, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.9, 0.1]]]))
        tensor([[1.0000, 0.0000],
                [0.7000, 0.3000]])
    """
    sizes = weights.abs().mean(0)
    total = sizes.sum(-1, keepdim=True)
    alone = torch.eye(sizes.shape[-1]).to(sizes)
    return torch.where(total > 0, sizes / torch.where(total > 0, total, 1), alone)


def norm_weights(
    weights: Float[Tensor, "head query key"], projected_values: Float[Tensor, "#head key d_model"]
) -> Float[Tensor, "query key"]:
    """Return ‖Σ_h a^h_ij t^h_j‖, what a layer's heads together pass from key to query (Kobayashi et al. 2020, 2.2).

    For a rollout by norms instead of weights. The heads of a group share values; repeat them. O(heads · n² · d_model).

    Examples:
        >>> import torch
        >>> from identilens.measures.mixing.rollout import norm_weights
        >>> values = torch.tensor([[[3.0, 4.0], [0.0, 0.0]], [[-3.0, -4.0], [1.0, 0.0]]])
        >>> norm_weights(torch.full((2, 1, 2), 0.5), values)
        tensor([[0.0000, 0.5000]])
    """
    return torch.stack(
        [
            torch.linalg.vector_norm((row[..., None] * projected_values).sum(0), dim=-1)
            for row in weights.unbind(1)
        ]
    )


def rollout_correlation(table: pl.DataFrame) -> pl.DataFrame:
    """Return the correlation of raw and effective rollout with contributions, layer by layer.

    Pearson and Spearman correlation over the pairs of tokens of a text, averaged over the texts where they are defined.
    The token's own entry is the largest in all three, so with it they always agree. The correlations without it show
    whether attention tells *which context* is mixed in.

    Returns:
        Columns kind, layer, rollout ("raw", "effective"), pairs ("all", "context"), pearson, spearman, texts. No rows
        if the table has no rollouts.
    """
    causal = (pl.col("kind") == "decoder") & (pl.col("input") > pl.col("hidden"))
    kept = table.lazy().filter(~causal).drop_nulls("raw_rollout")
    parts = []
    for pairs, rows in (
        ("all", kept),
        ("context", kept.filter(pl.col("hidden") != pl.col("input"))),
    ):
        for rollout in ("raw", "effective"):
            correlations = [
                pl.corr("contribution", f"{rollout}_rollout", method=method)
                .fill_nan(None)
                .alias(method)
                for method in ("pearson", "spearman")
            ]
            by_text = rows.group_by("kind", "layer", "text").agg(correlations)
            labels = pl.lit(rollout).alias("rollout"), pl.lit(pairs).alias("pairs")
            means = pl.col("pearson", "spearman").mean(), pl.col("pearson").count().alias("texts")
            parts.append(by_text.group_by("kind", "layer").agg(*labels, *means))
    return pl.concat(parts).sort("kind", "pairs", "rollout", "layer").collect()
