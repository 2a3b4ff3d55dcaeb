"""Theorem 1's layer off balance, and scores of constructed transformers on prefixes of one length."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.lab.dyck.embeddings import pair_symbols, symbols
from identilens.lab.dyck.evaluation import closing_accuracy, support_accuracy
from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.stacked import stack_parameters
from identilens.lab.dyck.sufficiency import balanced_scores, sufficient_model


def off_balance(
    language: Dyck, size: float, *, spread: float = 1.0, seed: int = 0
) -> tuple[DyckForCausalLM, Float[Tensor, "symbol d"]]:
    """Return Theorem 1's layer for random embeddings with its attention moved off balance, and the embeddings.

    All weights except W_K are those for balanced logits of size ``spread``. For every closing bracket as query, a
    random number uniform in ±size/2 is added to the logit of every bracket.
    """
    generator = torch.Generator().manual_seed(seed)
    count = symbols(language)
    embeddings = torch.randn(count, count + 8, dtype=torch.float64, generator=generator)
    scores = balanced_scores(language, spread, generator)
    model = sufficient_model(language, embeddings, scores, seed=seed)
    if size > 0:
        queries = pair_symbols(language)[1].flatten()
        moved = torch.zeros_like(scores)
        drawn = torch.rand(len(queries), count - 1, dtype=torch.float64, generator=generator) - 0.5
        moved[queries, 1:] = size * drawn
        inverse = torch.linalg.pinv(embeddings)
        with torch.no_grad():
            key = model.get_parameter("dyck.layers.0.attention.k_proj.weight")
            key += embeddings.shape[1] ** 0.5 * (inverse @ moved @ inverse.T)
    return model, embeddings


@dataclass(frozen=True)
class Scores:
    """Scores of a model on prefixes of one length.

    Attributes:
        support: Share of positions where the model allows exactly the possible next tokens.
        argmax: Share of correct closing brackets, in prefixes of at least nine tenths of the length.
        threshold: Share of positions there at which the right closing bracket has most of the probability.
    """

    support: float
    argmax: float
    threshold: float


def score_construction(language: Dyck, model: DyckForCausalLM, length: int, count: int, seed: int) -> Scores:
    """Return the scores of a model on ``count`` random prefixes of one length."""
    tokens = with_start(language.sample_prefixes(count, length, torch.Generator().manual_seed(seed + length)))
    parameters = stack_parameters([model])
    accuracy = closing_accuracy(model.config, parameters, tokens, shortest=max(2, (9 * length) // 10))[0]
    return Scores(support_accuracy(model.config, parameters, tokens), accuracy.argmax, accuracy.threshold)
