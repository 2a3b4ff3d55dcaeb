"""Training a model to reverse sequences, until it does so well enough."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from identilens.lab.reversal.settings import ReversalSettings, TaskSettings
from identilens.lab.reversal.task import reversal_pairs


@dataclass(frozen=True)
class CrossAttention:
    """What the attention of a decoder to its encoder is made of."""

    weights: Float[Tensor, "head text n n"]
    values: Float[Tensor, "head text n d_v"]
    output_projection: Float[Tensor, "head text d_v d_model"]


def before(target: Int[Tensor, "batch m"], start: int) -> Int[Tensor, "batch m"]:
    """Return what a decoder reads: a token that starts it, then the target but for its last token."""
    return torch.cat([torch.full_like(target[:, :1], start), target[:, :-1]], 1)


@dataclass(frozen=True)
class ReversalData:
    """Sequences of tokens; the target of each is its reverse."""

    train: Int[Tensor, "train n"]
    validation: Int[Tensor, "held_out n"]
    test: Int[Tensor, "held_out n"]


def reversal_data(settings: TaskSettings) -> ReversalData:
    """Return the sequences to train on, to validate and to test with, drawn independently."""
    sizes = (settings.train, settings.held_out, settings.held_out)
    return ReversalData(*(
        reversal_pairs(size, settings.length, settings.vocabulary, 3 * settings.seed + place)
        for place, size in enumerate(sizes)
    ))  # fmt: skip


def train_reverser(
    model: nn.Module, data: ReversalData, settings: ReversalSettings, tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Train a model in place until it is accurate enough, and return its course: a row for each epoch.

    Cross entropy, Adam, gradients clipped at norm 1; the decoder is given the right tokens before each. Nothing of
    the test set takes part.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    optimiser = torch.optim.Adam(model.parameters(), settings.rate)
    course = []
    for epoch in range(1, settings.epochs + 1):
        model.train()
        rows = torch.randperm(len(data.train), generator=generator).split(settings.batch_size)
        total = sum(_step(model, optimiser, data.train[some]) * len(some) for some in rows)
        accuracy = token_accuracy(model, data.validation)[0]
        course.append({"epoch": epoch, "loss": total / len(data.train), "validation_accuracy": accuracy})
        tell(f"epoch {epoch} of at most {settings.epochs}, validation accuracy {accuracy:.3f}")
        if accuracy >= settings.accuracy:
            break
    model.eval()
    return course


def _step(model: nn.Module, optimiser: torch.optim.Optimizer, source: Int[Tensor, "batch n"]) -> float:
    target = source.flip(-1)
    loss = nn.functional.cross_entropy(model(source, target).flatten(0, 1), target.flatten())
    optimiser.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimiser.step()
    return float(loss.detach())


@torch.no_grad()
def token_accuracy(model: nn.Module, source: Int[Tensor, "sequence n"]) -> tuple[float, float]:
    """Return the share of tokens that are right, given the right ones before, and of sequences without a wrong one."""
    model.eval()
    parts = source.split(256)
    right = torch.cat([model(some, some.flip(-1)).argmax(-1) == some.flip(-1) for some in parts])
    return float(right.double().mean()), float(right.all(-1).double().mean())
