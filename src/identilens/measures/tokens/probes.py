"""Probes that recover the input token from a hidden state, in the style of scikit-learn: ``fit`` returns self."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf, isfinite

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu
from torch.nn.init import xavier_uniform_
from torch.optim import Adam

from identilens.errors import NumericalError
from identilens.linalg.checks import check_finite
from identilens.measures.tokens.lookup import Distance, look_up

_NORM_FLOOR = 1e-24  # Avoids division by zero for zero vectors.

Hidden = Float[Tensor, "token d_in"]
Inputs = Float[Tensor, "token d_out"]
HeldHidden = Float[Tensor, "validation d_in"]
HeldInputs = Float[Tensor, "validation d_out"]
Pairs = tuple[Tensor, Tensor]
Report = Callable[[int], None]
Parameters = tuple[Tensor, ...]
"""Matrices are stored transposed, d_in x d_out: gradients have the same memory order, so no step reorders them."""

PAPER_RATES = (0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001, 0.000003)
"""Brunner et al. 2020, B.1."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """A map trained with one learning rate.

    The parameters are those of the epoch with the lowest validation loss, none if it diverged, and then that loss is
    infinite. ``best_epoch`` counts from 1. ``converged`` is True if training stopped because the loss no longer
    improved, and False if it reached the limit or diverged.
    """

    parameters: Parameters
    learning_rate: float
    validation_loss: float
    best_epoch: int
    epochs: int
    converged: bool


@dataclass(eq=False)
class Probe:
    """A map g of hidden states to inputs (Brunner et al. 2020, 4.2), trained by Adam with early stopping (B.1).

    Linear without bias, g(e) = W e; with ``hidden_units``, 1000 in the paper, W₂ gelu(W₁ e + b₁) + b₂. Before it is
    fitted g(e) = e, the naive probe. The distance, "cosine" or "l2", is used in the look-up and in the loss.

    Adam has (0.9, 0.999), the initial weights are Glorot uniform, and all rates have the same weights and batches.
    Training runs on the device of the hidden states.

    Give one learning rate, several to search by validation loss, or None for the paper's seven. The seed is used for
    the initial weights and the batches. A step uses ``batch_size`` tokens. Training stops after ``patience`` epochs
    without a lower validation loss, or after ``max_epochs``; the paper gives no limit. ``outcome_`` is the best of
    ``outcomes_``, one for each rate; its parameters are Wᵀ, or W₁ᵀ, b₁, W₂ᵀ, b₂.
    """

    distance: Distance = "cosine"
    learning_rate: float | tuple[float, ...] | None = None
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000
    seed: int = 0
    hidden_units: int | None = None
    outcome_: Outcome | None = field(default=None, init=False, repr=False)
    outcomes_: tuple[Outcome, ...] = field(default=(), init=False, repr=False)

    def fit(
        self,
        hidden: Hidden,
        inputs: Inputs,
        validation_hidden: HeldHidden,
        validation_inputs: HeldInputs,
        progress: Report | None = None,
    ) -> "Probe":
        """Return self, fitted on pairs of a hidden state e_i and an input x_i; ``progress`` is called in each epoch.

        Raises:
            NumericalError: If pairs are not finite, or every learning rate diverged.
        """
        training, validation = (hidden, inputs), (validation_hidden, validation_inputs)
        for states, targets in (training, validation):
            check_finite(states=states, targets=targets)
        rates = PAPER_RATES if self.learning_rate is None else self.learning_rate
        rates = rates if isinstance(rates, tuple) else (rates,)
        self.outcomes_ = tuple(self._train(rate, training, validation, progress) for rate in rates)
        best = min(self.outcomes_, key=lambda outcome: outcome.validation_loss)
        if not best.parameters:
            raise NumericalError(
                f"expected a finite validation loss at one of the learning rates {rates}, got none; "
                "scale the hidden states or use smaller rates"
            )
        self.outcome_ = best
        return self

    def transform(self, hidden: Hidden) -> Inputs:
        """Return g(e) for every hidden state."""
        if self.outcome_ is None:
            return hidden
        parameters = self.outcome_.parameters
        return mapped(parameters, hidden.to(parameters[0]))

    def score(self, hidden: Hidden, inputs: Inputs, lengths: Sequence[int]) -> float:
        """Return the token identifiability rate on sentences with the given lengths; see ``look_up``."""
        return look_up(self.transform(hidden), inputs, lengths, distance=self.distance).rate

    @torch.enable_grad()
    def _train(
        self, rate: float, training: Pairs, validation: Pairs, progress: Report | None
    ) -> Outcome:
        """Train with one rate until the validation loss no longer falls."""
        hidden, inputs = training
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        generator = torch.Generator().manual_seed(self.seed)
        middle = [] if self.hidden_units is None else [self.hidden_units]
        initial: list[Tensor] = []
        for size, wide in pairwise([hidden.shape[-1], *middle, inputs.shape[-1]]):
            drawn = xavier_uniform_(torch.empty(wide, size), generator=generator)
            initial += [drawn.T.contiguous(), *([torch.zeros(wide)] if middle else [])]
        parameters = tuple(tensor.to(hidden.device, dtype).requires_grad_() for tensor in initial)
        optimiser = Adam(parameters, lr=rate, fused=True)
        train, held = (
            [tensor.to(hidden.device, dtype) for tensor in pairs]
            for pairs in (training, validation)
        )

        def loss_of(features: Tensor, targets: Tensor) -> Tensor:
            return mean_loss(mapped(parameters, features), targets, self.distance)

        best, lowest, best_epoch, epoch, loss = (), inf, 0, 0, 0.0
        while epoch < self.max_epochs and epoch - best_epoch < self.patience and isfinite(loss):
            order = torch.randperm(len(hidden), generator=generator).to(hidden.device)
            for rows in order.split(self.batch_size):
                optimiser.zero_grad()
                loss_of(*(tensor[rows] for tensor in train)).backward()
                optimiser.step()
            epoch += 1
            with torch.no_grad():
                loss = float(loss_of(*held))
            if loss < lowest:
                lowest, best_epoch = loss, epoch
                best = tuple(tensor.detach().clone() for tensor in parameters)
            if progress is not None:
                progress(epoch)
        converged = isfinite(loss) and epoch - best_epoch >= self.patience
        return Outcome(
            parameters=best,
            learning_rate=rate,
            validation_loss=lowest,
            best_epoch=best_epoch,
            epochs=epoch,
            converged=converged,
        )


def mapped(parameters: Parameters, hidden: Hidden) -> Inputs:
    """Return g(e) with these parameters: of a linear map, or with one hidden layer."""
    if len(parameters) == 1:
        return hidden @ parameters[0]
    first, first_bias, second, second_bias = parameters
    return torch.addmm(second_bias, gelu(torch.addmm(first_bias, hidden, first)), second)


def mean_loss(predicted: Inputs, targets: Inputs, distance: Distance) -> Float[Tensor, ""]:
    """Return the mean loss over rows (Brunner et al. 2020, 4.1).

    "l2": the mean over coordinates of (g(e) − x)²; "cosine": 1 − cos(g(e), x).
    """
    if distance == "l2":
        return (predicted - targets).square().mean()
    # Products are computed before the division: torch.cosine_similarity divides every vector and takes twice as long.
    norms = torch.linalg.vector_norm(predicted, dim=-1) * torch.linalg.vector_norm(targets, dim=-1)
    return (1 - (predicted * targets).sum(-1) / norms.clamp_min(_NORM_FLOOR)).mean()
