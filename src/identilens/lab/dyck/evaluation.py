"""Accuracy of Dyck models on closing brackets, in distribution and on longer prefixes, by two measures."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.language import with_start
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.parsing import next_token_distribution, parse
from identilens.lab.dyck.settings import DyckTraining, Measuring
from identilens.lab.dyck.stacked import Stack
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
def closing_accuracy(
    models: Sequence[DyckForCausalLM], tokens: Int[Tensor, "count n"], shortest: int = 1
) -> list[Accuracy]:
    """Return the accuracy of each of some models of one configuration, on sequences with a start token.

    The last bracket is predicted of every prefix with at least ``shortest`` brackets.
    """
    config: DyckConfig = models[0].config
    members, n = len(models), tokens.shape[1] - 1
    stack, parsed = Stack(models, tokens.device), parse(config.language, tokens)
    top = parsed.top_type[:, :-1].clamp_min(0)
    counted = (parsed.depth[:, :-1] > 0) & (torch.arange(n, device=tokens.device) >= shortest - 1)
    closing = config.language.is_close(tokens[:, 1:]) & counted
    right = torch.zeros(2, members, dtype=torch.float64)
    widest = max(config.hidden_size, 2 * n * config.num_attention_heads)
    for rows in blocks(len(tokens), 4 * members * n * widest, tokens.device):
        logits = stack.logits(tokens[rows, :-1].expand(members, -1, -1))
        probabilities = torch.softmax(logits[..., config.language.closing], -1)
        first = probabilities.argmax(-1) == top[rows]
        right[0] += (first & closing[rows]).sum((1, 2)).cpu()
        certain = probabilities.take_along_dim(top[None, rows, :, None], -1)[..., 0] > CERTAIN
        right[1] += (certain & counted[rows]).sum((1, 2)).cpu()
    totals = torch.stack([closing.sum(), counted.sum()]).clamp_min(1).cpu()
    return [Accuracy(*shares) for shares in (right / totals[:, None]).T.tolist()]


def generalisation(
    models: Sequence[DyckForCausalLM],
    law: DyckTraining,
    measuring: Measuring,
    device: str | torch.device,
) -> tuple[list[Accuracy], list[Accuracy]]:
    """Return each model's accuracy in distribution and on long prefixes.

    In distribution: every prefix of new sequences from the training distribution. Long: prefixes by Definition 1, of
    every length from the shortest to the longest, for every training distribution. All models have one
    configuration.
    """
    config: DyckConfig = models[0].config
    # This offset makes the seeds of tests different from those of training sets.
    short = config.language.sample(law, measuring.sequences, 1_000_004).to(device)
    generator = torch.Generator().manual_seed(2_000_004)
    shortest, longest = measuring.lengths
    drawn = config.language.sample_prefixes(measuring.long_sequences, longest, generator)
    long = with_start(drawn).to(device)
    return closing_accuracy(models, short), closing_accuracy(models, long, shortest)


@torch.no_grad()
def support_accuracy(model: DyckForCausalLM, tokens: Int[Tensor, "count n"]) -> float:
    """Return the share of prefixes, with the empty one, for which a model allows exactly the possible next tokens.

    The model allows a token if its probability exceeds 1e-6. The sequences have a start token; the prefixes are
    those without the last bracket.
    """
    language = model.config.language
    parsed = parse(language, tokens)
    law = next_token_distribution(language, parsed.depth, parsed.top_type)[:, :-1]
    right = 0
    for row, possible in zip(tokens[:, :-1], law > 0, strict=True):
        given = torch.softmax(model(row[None]).logits[0], -1) > 1e-6
        right += int((given == possible).all(-1).sum())
    return right / law[..., 0].numel()
