"""Alternatives put back into the model: what changes in its hidden states, logits and loss."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.models.substitution import ModelRun


@dataclass(frozen=True)
class PutBack:
    """What putting weights into a model changed.

    Attributes:
        rows: For each hidden state (layer 0 is the embedding output), the logits and the loss: the largest absolute
            change of an entry, and that of a position's vector as a share of its norm (for the loss, of the loss).
        hidden: Relative change of the final hidden state.
        logits: Relative change of the logits, None without a task head.
        loss: Absolute change of the loss, None without one.
    """

    rows: list[dict[str, Any]]
    hidden: float
    logits: float | None
    loss: float | None


def compare_runs(plain: ModelRun, changed: ModelRun) -> PutBack:
    """Return what differs between a run with the model's own weights and another on the same text.

    Raises:
        InputError: For runs of different texts or models.
    """
    rows: list[dict[str, Any]] = []

    def add(state: str, layer: int | None, largest: float, relative: float) -> float:
        rows.append(
            {
                "state": state,
                "state_layer": layer,
                "largest_change": largest,
                "relative_change": relative,
            }
        )
        return relative

    hidden, logits, loss = torch.nan, None, None
    for sequence, states in plain.hidden_states.items():
        others = changed.hidden_states.get(sequence)
        if others is None or others.shape != states.shape:
            raise InputError(
                "expected two runs of one model on one text; their hidden states differ in shape."
            )
        for layer, (before, after) in enumerate(zip(states, others, strict=True)):
            hidden = add(sequence, layer, *_distance(before, after))
    if plain.logits is not None and changed.logits is not None:
        logits = add("logits", None, *_distance(plain.logits, changed.logits))
    if plain.loss is not None and changed.loss is not None:
        loss = abs(changed.loss - plain.loss)
        add("loss", None, loss, loss / max(abs(plain.loss), 1e-12))
    return PutBack(rows, hidden, logits, loss)


def _distance(
    before: Float[Tensor, "*rows d"], after: Float[Tensor, "*rows d"]
) -> tuple[float, float]:
    before, move = before.double(), after.double() - before.double()
    sizes = torch.linalg.vector_norm(before, dim=-1).clamp_min(1e-12)
    return float(move.abs().max()), float((torch.linalg.vector_norm(move, dim=-1) / sizes).max())
