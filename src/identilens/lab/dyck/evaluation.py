"""Accuracy of Dyck models on closing brackets, in distribution and on longer prefixes, by two measures."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.lab.dyck.language import Tokens
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.parsing import next_token_distribution, parse
from identilens.linalg.memory import blocks

CERTAIN = 0.8
"""The right closing bracket must have more than this share of all closing brackets' probability (paper's code)."""


@dataclass(frozen=True)
class Accuracy:
    """Shares of positions where a model closes the right bracket.

    Attributes:
        argmax: Share of the prefixes that end with a closing bracket for which the right one has the largest logit
            of all closing brackets, given the rest of the prefix (the paper's text).
        threshold: Share of positions with a non-empty stack where P(right close) / P(any close) > 0.8 (paper's code).
    """

    argmax: float
    threshold: float


@torch.no_grad()
def all_logits(model: DyckForCausalLM, tokens: Tokens) -> Float[Tensor, "count n token"]:
    """Return the next-token logits of a model at every position, computed in parts of bounded memory."""
    widest = max(model.config.hidden_size, 2 * tokens.shape[1] * model.config.num_attention_heads)
    parts = blocks(len(tokens), 8 * tokens.shape[1] * widest, tokens.device)
    return torch.cat([model(tokens[rows]).logits for rows in parts])


def closing_accuracy(model: DyckForCausalLM, tokens: Tokens, shortest: int = 1) -> Accuracy:
    """Return the accuracy of a model on sequences with a start token.

    The last bracket is predicted of every prefix with at least ``shortest`` brackets.
    """
    language, inputs = model.config.language, tokens[:, :-1]
    parsed = parse(language, inputs)
    counted = parsed.depth > 0
    counted[:, : shortest - 1] = False
    closing = language.is_close(tokens[:, 1:]) & counted
    largest, kind = all_logits(model, inputs)[..., language.closing].softmax(-1).max(-1)
    right = (kind == parsed.top_type).double()
    return Accuracy(
        float(right[closing].mean()), float((right * (largest > CERTAIN))[counted].mean())
    )


def support_accuracy(model: DyckForCausalLM, tokens: Tokens) -> float:
    """Return the share of prefixes, with the empty one, for which a model allows exactly the possible next tokens.

    The model allows a token if its probability exceeds 1e-6. The sequences have a start token; the prefixes are
    those without the last bracket.
    """
    language, inputs = model.config.language, tokens[:, :-1]
    parsed = parse(language, inputs)
    law = next_token_distribution(language, parsed.depth, parsed.top_type)
    right = (all_logits(model, inputs).softmax(-1) > 1e-6) == (law > 0)
    return float(right.all(-1).double().mean())
