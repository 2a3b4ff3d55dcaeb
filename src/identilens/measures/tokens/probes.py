"""Probes that recover the input token from a hidden state, in the style of scikit-learn: ``fit`` returns self."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu
from torch.nn.init import xavier_uniform_
from torch.optim import Adam

from identilens.errors import InputError, NumericalError
from identilens.linalg.checks import check_finite
from identilens.linalg.decompositions import eigh
from identilens.linalg.tolerance import relative_tolerance
from identilens.measures.tokens.lookup import Distance, look_up
from identilens.measures.tokens.splits import Lengths

_NORM_FLOOR = 1e-24  # Avoids division by zero for zero vectors.
ROWS = 4096  # Rows that are converted to float64 at a time.


@dataclass(frozen=True, eq=False)
class RidgeFit:
    """The ridge solution W, d_out x d_in, with the lowest validation loss; ``losses`` has the loss of every penalty.

    Losses are means of (W e − x)² over tokens and coordinates. Penalties are shares of the mean squared coordinate of
    e.
    """

    weight: Float[Tensor, "d_out d_in"]
    penalty: float
    validation_loss: float
    losses: tuple[float, ...]


def fit_ridge(
    hidden: Float[Tensor, "train d_in"],
    inputs: Float[Tensor, "train d_out"],
    validation_hidden: Float[Tensor, "validation d_in"],
    validation_inputs: Float[Tensor, "validation d_out"],
    penalties: Sequence[float],
) -> RidgeFit:
    """Return the map W that minimises Σ‖W e − x‖² + λ‖W‖²_F, with λ chosen on the validation tokens.

    W = Xᵀ E (Eᵀ E + λ I)⁻¹ for the rows e of E and x of X. With λ = 0, the L2 training of Brunner et al. 2020, B.1
    converges to this W. In the eigenbasis of EᵀE = V diag(s) Vᵀ, all penalties use the same products: with c = VᵀEᵀX
    and g_i = 1/(s_i + λ), the validation error is Σ_ij g_i g_j M_ij (c cᵀ)_ij − 2 Σ_i g_i (c Nᵀ)_ii + ‖X_val‖². M and N
    are EᵀE and EᵀX of the validation tokens in that basis. Each further penalty costs O(d²); the total cost is
    O(tokens d² + d³), in float64. Directions in which the hidden states do not vary (up to float32 rounding) are left
    out. ``penalties`` are the values of λ to try, as shares of trace(EᵀE)/d_in.

    Examples:
        >>> import torch
        >>> from identilens.measures.tokens.probes import fit_ridge
        >>> hidden = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
        >>> inputs = hidden @ torch.diag(torch.tensor([1.0, 2.0, 3.0]))
        >>> found = fit_ridge(hidden[:30], inputs[:30], hidden[30:], inputs[30:], penalties=[1e-6, 1.0])
        >>> found.penalty, found.weight.round(decimals=3).diagonal()
        (1e-06, tensor([1., 2., 3.]))

    Raises:
        InputError: No penalty, or a negative one.
    """
    if not penalties or min(penalties) < 0:
        raise InputError(
            f"expected penalties of at least 0, got {tuple(penalties)}; 0 is plain least squares"
        )
    gram, cross = _products(hidden, inputs)
    values, V = eigh(gram)
    # s = σ². More tokens increase signal and rounding equally, so the tolerance is that of a d_in x d_in matrix.
    varying = values > relative_tolerance(len(gram), len(gram)) ** 2 * values[-1]
    c = V.T @ cross
    validation_gram, validation_cross = _products(validation_hidden, validation_inputs)
    quadratic = (V.T @ validation_gram @ V) * (c @ c.T)
    linear = ((V.T @ validation_cross) * c).sum(1)
    scale = gram.trace() / len(gram)
    inverses = [
        torch.where(varying, 1 / (values + penalty * scale).where(varying, 1.0), 0.0)
        for penalty in penalties
    ]
    # The term ‖X_val‖² is the same for all penalties.
    errors = torch.stack(
        [inverse @ quadratic @ inverse - 2 * inverse @ linear for inverse in inverses]
    )
    best = int(errors.argmin())
    squares = float(validation_inputs.double().square().sum())
    losses = tuple(
        max(0.0, (squares + error) / validation_inputs.numel()) for error in errors.tolist()
    )
    weight = ((V * inverses[best]) @ c).T.to(inputs.dtype).contiguous()
    return RidgeFit(
        weight,
        float(penalties[best]),
        _mean_squared(weight, validation_hidden, validation_inputs),
        losses,
    )


def _products(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Return leftᵀ left and leftᵀ right in float64, computed by blocks of rows."""
    gram = left.new_zeros(left.shape[1], left.shape[1], dtype=torch.float64)
    cross = left.new_zeros(left.shape[1], right.shape[1], dtype=torch.float64)
    for rows_left, rows_right in zip(left.split(ROWS), right.split(ROWS), strict=True):
        rows = rows_left.double()
        gram.addmm_(rows.T, rows)
        cross.addmm_(rows.T, rows_right.double())
    return gram, cross


def _mean_squared(weight: Tensor, hidden: Tensor, inputs: Tensor) -> float:
    """Return the validation loss from the residuals, without the cancellation of the expanded form."""
    blocks = zip(hidden.split(ROWS), inputs.split(ROWS), strict=True)
    errors = ((rows.to(weight.dtype) @ weight.T - targets).square() for rows, targets in blocks)
    return sum(float(error.sum(dtype=torch.float64)) for error in errors) / inputs.numel()


Hidden = Float[Tensor, "token d_in"]
Inputs = Float[Tensor, "token d_out"]
HeldHidden = Float[Tensor, "validation d_in"]
HeldInputs = Float[Tensor, "validation d_out"]
Pairs = tuple[Tensor, Tensor]
P = TypeVar("P", bound="Probe")
F = TypeVar("F")
Report = Callable[[int], None]
Parameters = tuple[Tensor, ...]
"""Matrices are stored transposed, d_in x d_out: gradients have the same memory order, so no step reorders them."""

PAPER_RATES = (0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001, 0.000003)
"""Brunner et al. 2020, B.1."""

PENALTIES = (
    0.0,
    *(10 ** (power / 2) for power in range(-16, 3)),
)  # No penalty, then two per factor of ten.


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


class Probe(ABC):
    """Base of all probes. The distance, "cosine" or "l2", is used in the look-up and in the loss.

    What was fitted is ``outcome_``; None before, and for a probe that learns nothing.
    """

    distance: Distance
    outcome_: Any = None

    def fit(
        self: P,
        hidden: Hidden,
        inputs: Inputs,
        validation_hidden: HeldHidden,
        validation_inputs: HeldInputs,
        progress: Report | None = None,
    ) -> P:
        """Return self, fitted on pairs of a hidden state e_i and an input x_i; ``progress`` is called in each epoch.

        Raises:
            InputError: For pairs that do not fit together, or settings out of range.
            NumericalError: If pairs are not finite, or every learning rate diverged.
        """
        training, validation = (hidden, inputs), (validation_hidden, validation_inputs)
        for name, (states, targets) in (("training", training), ("validation", validation)):
            if len(states) != len(targets) or not len(states):
                raise InputError(
                    f"expected one input for each hidden state of {name}, at least one; got {len(states)} and "
                    f"{len(targets)}"
                )
            check_finite(states=states, targets=targets)
        self._learn(training, validation, progress)
        return self

    @abstractmethod
    def _learn(self, training: Pairs, validation: Pairs, progress: Report | None) -> None:
        """Fit the probe on pairs that were checked."""

    @abstractmethod
    def transform(self, hidden: Hidden) -> Inputs:
        """Return g(e) for every hidden state."""

    def score(self, hidden: Hidden, inputs: Inputs, lengths: Lengths) -> float:
        """Return the token identifiability rate on sentences with the given lengths; see ``look_up``."""
        return look_up(self.transform(hidden), inputs, lengths, distance=self.distance).rate


@dataclass(eq=False)
class NaiveProbe(Probe):
    """g(e) = e: the hidden state itself is used in the look-up (Brunner et al. 2020, 4.2)."""

    distance: Distance = "cosine"

    def _learn(self, training: Pairs, validation: Pairs, progress: Report | None) -> None:
        pass

    def transform(self, hidden: Hidden) -> Inputs:
        """Return the hidden states unchanged."""
        return hidden


@dataclass(eq=False)
class TrainedProbe(Probe):
    """A probe trained by Adam with early stopping (Brunner et al. 2020, B.1).

    Adam has (0.9, 0.999), the initial weights are Glorot uniform, and all rates have the same weights and batches.
    Training runs on the device of the hidden states.

    Give one learning rate, several to search by validation loss, or None for the paper's seven. The seed is used for
    the initial weights and the batches. A step uses ``batch_size`` tokens. Training stops after ``patience`` epochs
    without a lower validation loss, or after ``max_epochs``; the paper gives no limit. ``outcome_`` is the best of
    ``outcomes_``, one for each rate.
    """

    distance: Distance = "cosine"
    learning_rate: float | tuple[float, ...] | None = None
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000
    seed: int = 0
    outcome_: Outcome | None = field(default=None, init=False, repr=False)
    outcomes_: tuple[Outcome, ...] = field(default=(), init=False, repr=False)

    @abstractmethod
    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> Parameters:
        """Return the parameters before training: Glorot uniform matrices, biases zero."""

    @abstractmethod
    def apply(self, parameters: Parameters, hidden: Hidden) -> Inputs:
        """Return g(e) with these parameters."""

    def _learn(self, training: Pairs, validation: Pairs, progress: Report | None) -> None:
        for name in ("batch_size", "patience", "max_epochs"):
            if getattr(self, name) < 1:
                raise InputError(f"expected {name} of at least 1, got {getattr(self, name)}")
        rates = PAPER_RATES if self.learning_rate is None else self.learning_rate
        rates = rates if isinstance(rates, tuple) else (rates,)
        if not rates or min(rates) <= 0:
            raise InputError(
                f"expected positive learning rates, got {rates}; the paper's are from 3e-6 to 3e-3"
            )
        self.outcomes_ = tuple(self._train(rate, training, validation, progress) for rate in rates)
        best = min(self.outcomes_, key=lambda outcome: outcome.validation_loss)
        if not best.parameters:
            raise NumericalError(
                f"expected a finite validation loss at one of the learning rates {rates}, got none; "
                "scale the hidden states or use smaller rates"
            )
        self.outcome_ = best

    @torch.enable_grad()
    def _train(
        self, rate: float, training: Pairs, validation: Pairs, progress: Report | None
    ) -> Outcome:
        """Train with one rate until the validation loss no longer falls."""
        hidden, inputs = training
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        generator = torch.Generator().manual_seed(self.seed)
        initial = self.initial(hidden.shape[-1], inputs.shape[-1], generator)
        parameters = tuple(tensor.to(hidden.device, dtype).requires_grad_() for tensor in initial)
        optimiser = Adam(parameters, lr=rate, fused=True)
        train, held = (
            [tensor.to(hidden.device, dtype) for tensor in pairs]
            for pairs in (training, validation)
        )

        def loss_of(features: Tensor, targets: Tensor) -> Tensor:
            return mean_loss(self.apply(parameters, features), targets, self.distance)

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

    def transform(self, hidden: Hidden) -> Inputs:
        """Return g(e) for every hidden state."""
        parameters = _fitted(self.outcome_).parameters
        return self.apply(parameters, _readable(hidden, parameters[0]))


@dataclass(eq=False)
class LinearProbe(TrainedProbe):
    """g(e) = W e without bias (Brunner et al. 2020, 4.2); its one parameter is Wᵀ."""

    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> Parameters:
        """Return Wᵀ."""
        return (_glorot(d_in, d_out, generator),)

    def apply(self, parameters: Parameters, hidden: Hidden) -> Inputs:
        """Return e Wᵀ."""
        return hidden @ parameters[0]


@dataclass(eq=False)
class MlpProbe(TrainedProbe):
    """g(e) = W₂ gelu(W₁ e + b₁) + b₂ with one hidden layer, 1000 wide in the paper (Brunner et al. 2020, B.1).

    Its parameters are W₁ᵀ, b₁, W₂ᵀ, b₂.
    """

    hidden_units: int = 1000

    def initial(self, d_in: int, d_out: int, generator: torch.Generator) -> Parameters:
        """Return W₁ᵀ, b₁, W₂ᵀ, b₂.

        Raises:
            InputError: Without a hidden unit.
        """
        if self.hidden_units < 1:
            raise InputError(
                f"expected hidden_units of at least 1, got {self.hidden_units}; the paper has 1000"
            )
        first = _glorot(d_in, self.hidden_units, generator)
        second = _glorot(self.hidden_units, d_out, generator)
        return (first, first.new_zeros(self.hidden_units), second, second.new_zeros(d_out))

    def apply(self, parameters: Parameters, hidden: Hidden) -> Inputs:
        """Return W₂ gelu(W₁ e + b₁) + b₂."""
        first, first_bias, second, second_bias = parameters
        return torch.addmm(second_bias, gelu(torch.addmm(first_bias, hidden, first)), second)


@dataclass(eq=False)
class RidgeProbe(Probe):
    """g(e) = W e in closed form, with the penalty that is best on the validation tokens; see ``fit_ridge``."""

    penalties: tuple[float, ...] = PENALTIES
    distance: Distance = field(default="l2", init=False)
    outcome_: RidgeFit | None = field(default=None, init=False, repr=False)

    def _learn(self, training: Pairs, validation: Pairs, progress: Report | None) -> None:
        self.outcome_ = fit_ridge(*training, *validation, self.penalties)

    def transform(self, hidden: Hidden) -> Inputs:
        """Return W e for every hidden state."""
        weight = _fitted(self.outcome_).weight.T
        return _readable(hidden, weight) @ weight


def mean_loss(predicted: Inputs, targets: Inputs, distance: Distance) -> Float[Tensor, ""]:
    """Return the mean loss over rows (Brunner et al. 2020, 4.1).

    "l2": the mean over coordinates of (g(e) − x)²; "cosine": 1 − cos(g(e), x).
    """
    if distance == "l2":
        return (predicted - targets).square().mean()
    # Products are computed before the division: torch.cosine_similarity divides every vector and takes twice as long.
    norms = torch.linalg.vector_norm(predicted, dim=-1) * torch.linalg.vector_norm(targets, dim=-1)
    return (1 - (predicted * targets).sum(-1) / norms.clamp_min(_NORM_FLOOR)).mean()


def _glorot(d_in: int, d_out: int, generator: torch.Generator) -> Tensor:
    """Return a transposed Glorot uniform matrix (Glorot & Bengio 2010)."""
    return xavier_uniform_(
        torch.empty(d_out, d_in, dtype=torch.float32), generator=generator
    ).T.contiguous()


def _fitted(outcome: F | None) -> F:
    if outcome is None:
        raise InputError("expected a fitted probe, got one that is not fitted; call fit first")
    return outcome


def _readable(hidden: Tensor, matrix: Tensor) -> Tensor:
    """Return hidden states in the type and on the device of the matrix that a fitted probe applies first."""
    width = len(matrix)
    if hidden.shape[1] != width:
        raise InputError(
            f"expected hidden states of width {width}, as in fit, got width {hidden.shape[1]}; "
            "use a probe fitted on the same model"
        )
    return hidden.to(matrix)
