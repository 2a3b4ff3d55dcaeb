"""Constructed Dyck transformers, tested: uniform and balanced attention at every length, and off balance."""

from collections.abc import Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.lab.drawing import normals, seeded, uniforms
from identilens.lab.dyck.balance import measure_balance, second_layer
from identilens.lab.dyck.embeddings import symbols
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.lab.dyck.sufficiency import (
    balanced_scores,
    sufficient_model,
    uniform_embeddings,
    uniform_transformer,
)


def unbalanced_model(
    language: Dyck, size: float, seed: int
) -> tuple[DyckForCausalLM, Float[Tensor, "symbol d"]]:
    """Return Theorem 1's layer for random embeddings with its attention moved off balance, and the embeddings.

    All weights except W_K are those for balanced logits uniform in ±1. For every closing bracket as query, a
    random number uniform in ±size/2 is added to the logit of every bracket.
    """
    generator = seeded(seed)
    count = symbols(language)
    embeddings = normals(generator, count, count + 8)
    scores = balanced_scores(language, 1.0, generator)
    model = sufficient_model(language, embeddings, scores)
    embeddings = model.get_buffer("dyck.embeddings.symbol_table")
    # Closing brackets are the last half of the symbols; as keys, all but the start token are brackets.
    moved = size * (uniforms(generator, count // 2, count - 1) - 0.5)
    change = pad(moved, (1, 0, count // 2 + 1, 0))
    inverse = torch.linalg.pinv(embeddings)
    key = model.get_parameter("dyck.layers.0.attention.k_proj.weight").data
    key += embeddings.shape[1] ** 0.5 * (inverse @ change @ inverse.T)
    return model, embeddings


def construct_dyck(
    *,
    types: int = 2,
    depth: int = 4,
    lengths: Sequence[int] = (28, 100, 500, 2000),
    count: int = 50,
    off_balance: Sequence[float] = (0.0, 0.001, 0.01, 0.03, 0.1, 0.3, 1.0),
    seed: int = 0,
) -> pl.DataFrame:
    """Build uniform and balanced attention that generates Dyck of any length, test it, and break it.

    ``uniform``: the two layers of uniform attention of Corollary 1, in float32. ``balanced``: Theorem 1's layer on
    random linearly independent embeddings. Its random attention logits are balanced, or moved off the balance condition
    by a stated size.

    Args:
        types: Number of bracket types, k; at least 2, since with one there is nothing to balance.
        depth: Largest number of open brackets, D; at least 2.
        lengths: Numbers of brackets in the test prefixes.
        count: Number of prefixes of each length.
        off_balance: Sizes, in logits, of the perturbations that move the balanced layer's attention off Eq. 11.
        seed: Seed of embeddings, logits, perturbations and prefixes.

    Returns:
        One row a construction, size of the perturbation, and length. ``support`` is a share of the positions of all
        prefixes; ``argmax`` and ``threshold`` are shares of the positions from nine tenths of the length on.

    Examples:
        >>> import identilens as idl
        >>> built = idl.lab.construct_dyck(lengths=(28,), count=5, off_balance=(0.0, 0.3))
        >>> built.select("construction", "off_balance", "support").rows()
        [('uniform', 0.0, 1.0), ('balanced', 0.0, 1.0), ('balanced', 0.3, 1.0)]
    """
    language = Dyck(types, depth)
    built = [("uniform", 0.0, uniform_transformer(language), uniform_embeddings(language))]
    for size in off_balance:
        built.append(("balanced", size, *unbalanced_model(language, size, seed)))
    rows = []
    for name, size, model, embeddings in built:
        weights = attention_weights(model, model.config.num_hidden_layers - 1)
        balance = measure_balance(language, second_layer(embeddings, *weights))
        for length in lengths:
            tokens = with_start(language.sample_prefixes(count, length, seeded(seed + length)))
            shortest = max(2, (9 * length) // 10)
            rows.append(
                {
                    "construction": name,
                    "off_balance": size,
                    "length": length,
                    "support": support_accuracy(model, tokens),
                    **vars(closing_accuracy(model, tokens, shortest=shortest)),
                    **vars(balance),
                }
            )
    return pl.DataFrame(rows)
