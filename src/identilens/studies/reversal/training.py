"""Training a model to reverse sequences, until it does so well enough."""

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from identilens.errors import InputError
from identilens.studies.reversal.task import reversal_pairs

Logits = Callable[[Int[Tensor, "batch n"], Int[Tensor, "batch n"]], Float[Tensor, "batch n vocabulary"]]
"""From source and target tokens to the logits of each target token, given those before it."""


@dataclass(frozen=True)
class ReversalSettings:
    """What the draft says about the task (length, epochs, accuracy), and what it leaves open.

    Attributes:
        length: Tokens in a sequence (Fig. 1).
        vocabulary: Number of different tokens.
        hidden: Size of the LSTMs, or d_model of the transformer.
        train: Sequences to train on; as many as ``held_out`` more for validation and for the test.
        held_out: Sequences for validation, and for the test.
        batch_size: Sequences in a step.
        learning_rate: Of Adam.
        epochs: At most (the draft: 150).
        accuracy: Share of tokens right on validation at which training stops.
        inputs: Test inputs whose attention makes W (the draft: 100).
        seed: Of data, weights and order.
    """

    length: int = 20
    vocabulary: int = 10
    hidden: int = 64
    train: int = 10_000
    held_out: int = 1000
    batch_size: int = 64
    learning_rate: float = 3e-3
    epochs: int = 150
    accuracy: float = 0.995
    inputs: int = 100
    seed: int = 0


@dataclass(frozen=True)
class ReversalData:
    """Sequences of tokens; the target of each is its reverse."""

    train: Int[Tensor, "train n"]
    validation: Int[Tensor, "held_out n"]
    test: Int[Tensor, "held_out n"]


def reversal_data(settings: ReversalSettings) -> ReversalData:
    """Return the sequences to train on, to validate and to test with, drawn independently.

    Raises:
        InputError: For more inputs than test sequences, or numbers below 1.
    """
    if settings.inputs > settings.held_out:
        raise InputError(
            f"W is made of test inputs; expected at most {settings.held_out}, got {settings.inputs}. Raise held_out."
        )
    sizes = (settings.train, settings.held_out, settings.held_out)
    parts = [
        reversal_pairs(size, settings.length, settings.vocabulary, 3 * settings.seed + place)
        for place, size in enumerate(sizes)
    ]
    return ReversalData(*parts)


def train_reverser(
    model: nn.Module,
    logits: Logits,
    data: ReversalData,
    settings: ReversalSettings,
    progress: Callable[[int, int, str], None] | None = None,
) -> pl.DataFrame:
    """Train a model in place until it is accurate enough, and return its course.

    Cross entropy, Adam, gradients clipped at norm 1; the decoder is given the right tokens before each. Nothing of
    the test set takes part.

    Args:
        model: What is trained.
        logits: How it is run.
        data: The sequences.
        settings: The settings.
        progress: Called with (epochs done, epochs at most, a note).

    Returns:
        Columns: epoch (from 1), loss, validation_accuracy (share of tokens).
    """
    generator = torch.Generator().manual_seed(settings.seed)
    optimiser = torch.optim.Adam(model.parameters(), settings.learning_rate)
    course = []
    for epoch in range(1, settings.epochs + 1):
        model.train()
        total = 0.0
        for rows in torch.randperm(len(data.train), generator=generator).split(settings.batch_size):
            source = data.train[rows]
            target = source.flip(-1)
            loss = nn.functional.cross_entropy(logits(source, target).flatten(0, 1), target.flatten())
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            total += float(loss.detach()) * len(rows)
        accuracy = token_accuracy(model, logits, data.validation)[0]
        course.append((epoch, total / len(data.train), accuracy))
        if progress:
            progress(epoch, settings.epochs, f"validation accuracy {accuracy:.3f}")
        if accuracy >= settings.accuracy:
            break
    model.eval()
    return pl.DataFrame(course, schema=["epoch", "loss", "validation_accuracy"], orient="row")


@torch.no_grad()
def token_accuracy(model: nn.Module, logits: Logits, source: Int[Tensor, "sequence n"]) -> tuple[float, float]:
    """Return the share of tokens that are right, given the right ones before, and of sequences without a wrong one."""
    model.eval()
    target = source.flip(-1)
    right = torch.cat(
        [
            logits(some, some.flip(-1)).argmax(-1) == wanted
            for some, wanted in zip(source.split(256), target.split(256), strict=True)
        ]
    )
    return float(right.double().mean()), float(right.all(-1).double().mean())
