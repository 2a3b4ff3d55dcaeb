"""Alternatives put back into the model: what changes in its hidden states, logits and loss."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.models.substitution import ModelRun


@dataclass(frozen=True)
class StateChange:
    """How far one state of the model moved.

    Attributes:
        state: ``encoder``, ``decoder``, ``logits`` or ``loss``.
        layer: Index into the hidden states (0 is the embedding output); None for logits and loss.
        largest: Largest absolute change of an entry.
        relative: Largest change of a position's vector as a share of that vector's norm; for the loss, of the loss.
    """

    state: str
    layer: int | None
    largest: float
    relative: float


@dataclass(frozen=True)
class PutBack:
    """What putting weights into a model changed.

    Attributes:
        changes: By hidden state, logits and loss.
        hidden: Relative change of the final hidden state.
        logits: Relative change of the logits, None without a task head.
        loss: Absolute change of the loss, None without one.
    """

    changes: tuple[StateChange, ...]
    hidden: float
    logits: float | None
    loss: float | None


def compare_runs(plain: ModelRun, changed: ModelRun) -> PutBack:
    """Return what differs between two runs of a model on one text.

    Args:
        plain: The run with the model's own weights.
        changed: The run with others.

    Raises:
        InputError: For runs of different texts or models.
    """
    found = []
    for sequence, states in plain.hidden_states.items():
        others = changed.hidden_states.get(sequence)
        if others is None or others.shape != states.shape:
            raise InputError("expected two runs of one model on one text; their hidden states differ in shape.")
        for layer, (before, after) in enumerate(zip(states, others, strict=True)):
            found.append(StateChange(sequence, layer, *_distance(before, after)))
    final = found[-1].relative
    logits = loss = None
    if plain.logits is not None and changed.logits is not None:
        found.append(StateChange("logits", None, *_distance(plain.logits, changed.logits)))
        logits = found[-1].relative
    if plain.loss is not None and changed.loss is not None:
        loss = abs(changed.loss - plain.loss)
        found.append(StateChange("loss", None, loss, loss / max(abs(plain.loss), 1e-12)))
    return PutBack(tuple(found), final, logits, loss)


def _distance(before: Float[Tensor, "*rows d"], after: Float[Tensor, "*rows d"]) -> tuple[float, float]:
    before, after = before.double(), after.double()
    move = after - before
    sizes = torch.linalg.vector_norm(before, dim=-1).clamp_min(1e-12)
    return float(move.abs().max()), float((torch.linalg.vector_norm(move, dim=-1) / sizes).max())
