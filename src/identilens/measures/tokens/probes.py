"""Probes that recover the input token from a hidden state, in the style of scikit-learn: ``fit`` returns self."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.tolerance import relative_tolerance
from identilens.measures.tokens.lookup import Distance, check_finite, look_up
from identilens.measures.tokens.networks import LinearNetwork, MlpNetwork, Network, Parameters
from identilens.measures.tokens.splits import Lengths
from identilens.measures.tokens.training import (
    PAPER_RATES,
    Job,
    Layers,
    Outcome,
    Progress,
    Schedule,
    Targets,
    check_jobs,
    train_probes,
)

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
    values, V = torch.linalg.eigh(gram)
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
    gram = torch.zeros(left.shape[1], left.shape[1], dtype=torch.float64, device=left.device)
    cross = torch.zeros(left.shape[1], right.shape[1], dtype=torch.float64, device=left.device)
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
Report = Callable[[Progress], None]
Jobs = Sequence[Job]

PENALTIES = (
    0.0,
    *(10 ** (power / 2) for power in range(-16, 3)),
)  # No penalty, then two per factor of ten.


class Probe(ABC):
    """Base of all probes. The distance, "cosine" or "l2", is used in the look-up and in the loss."""

    distance: Distance

    @abstractmethod
    def fit(
        self,
        hidden: Hidden,
        inputs: Inputs,
        validation_hidden: HeldHidden,
        validation_inputs: HeldInputs,
    ) -> "Probe":
        """Return self, fitted on pairs of a hidden state e_i and an input x_i."""

    @abstractmethod
    def fit_all(
        self, jobs: Jobs, hidden: Layers, targets: Targets, progress: Report | None = None
    ) -> Sequence["Probe"]:
        """Return a fitted copy of the probe for each job."""

    @abstractmethod
    def transform(self, hidden: Hidden) -> Float[Tensor, "token d_out"]:
        """Return g(e) for every hidden state."""

    def score(self, hidden: Hidden, inputs: Inputs, lengths: Lengths) -> float:
        """Return the token identifiability rate on sentences with the given lengths; see ``look_up``."""
        return look_up(self.transform(hidden), inputs, lengths, distance=self.distance).rate


@dataclass(eq=False)
class NaiveProbe(Probe):
    """g(e) = e: the hidden state itself is used in the look-up (Brunner et al. 2020, 4.2)."""

    distance: Distance = "cosine"

    def fit(
        self,
        hidden: Hidden,
        inputs: Inputs,
        validation_hidden: HeldHidden | None = None,
        validation_inputs: HeldInputs | None = None,
    ) -> "NaiveProbe":
        """Return self; only the widths are checked, since nothing is learned."""
        _check_widths(hidden, inputs)
        return self

    def fit_all(
        self, jobs: Jobs, hidden: Layers, targets: Targets, progress: Report | None = None
    ) -> list["NaiveProbe"]:
        """Return a copy for each job."""
        _check_widths(hidden, targets)
        return [replace(self) for _ in jobs]

    def transform(self, hidden: Hidden) -> Float[Tensor, "token d_out"]:
        """Return the hidden states unchanged."""
        return hidden

    def score(self, hidden: Hidden, inputs: Inputs, lengths: Lengths) -> float:
        """Return the token identifiability rate; see ``look_up``."""
        _check_widths(hidden, inputs)
        return super().score(hidden, inputs, lengths)


@dataclass(eq=False)
class TrainedProbe(Probe):
    """A probe trained by Adam with early stopping (Brunner et al. 2020, B.1).

    Give one learning rate, several to search by validation loss, or None for the paper's seven. The seed is used for
    the initial weights and the batches. For the other settings see `Schedule`, for ``outcome_`` see `Outcome`.
    """

    distance: Distance = "cosine"
    learning_rate: float | tuple[float, ...] | None = None
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000
    seed: int = 0
    outcome_: Outcome | None = field(default=None, init=False, repr=False)

    @property
    @abstractmethod
    def network(self) -> Network:
        """The map that is trained."""

    @property
    def rates(self) -> tuple[float, ...]:
        """The learning rates to try."""
        if self.learning_rate is None:
            return PAPER_RATES
        return (
            self.learning_rate if isinstance(self.learning_rate, tuple) else (self.learning_rate,)
        )

    def fit(
        self,
        hidden: Hidden,
        inputs: Inputs,
        validation_hidden: HeldHidden,
        validation_inputs: HeldInputs,
    ) -> "TrainedProbe":
        """Return self, trained on pairs (e_i, x_i) with early stopping on the validation pairs."""
        _check_pairs(training=(hidden, inputs), validation=(validation_hidden, validation_inputs))
        train, validation = torch.arange(len(hidden) + len(validation_hidden)).tensor_split(
            [len(hidden)]
        )
        job = Job(0, 0, train, validation, rates=self.rates, seed=self.seed)
        layers = torch.cat([hidden, validation_hidden])[None]
        targets = torch.cat([inputs, validation_inputs])[None]
        self.outcome_ = self.fit_all([job], layers, targets)[0].outcome_
        return self

    def fit_all(
        self, jobs: Jobs, hidden: Layers, targets: Targets, progress: Report | None = None
    ) -> list["TrainedProbe"]:
        """Return a fitted copy for each job; rates and seeds are those of the jobs."""
        schedule = Schedule(self.distance, self.batch_size, self.patience, self.max_epochs)
        fitted = []
        for outcome in train_probes(jobs, hidden, targets, self.network, schedule, progress):
            fitted.append(replace(self))
            fitted[-1].outcome_ = outcome
        return fitted

    def transform(self, hidden: Hidden) -> Float[Tensor, "token d_out"]:
        """Return g(e) for every hidden state."""
        return _apply(self.network, self.outcome_ and self.outcome_.parameters, hidden)


@dataclass(eq=False)
class LinearProbe(TrainedProbe):
    """g(e) = W e without bias; its one parameter is Wᵀ."""

    @property
    def network(self) -> LinearNetwork:
        """W without a bias."""
        return LinearNetwork()


@dataclass(eq=False)
class MlpProbe(TrainedProbe):
    """g(e) = W₂ gelu(W₁ e + b₁) + b₂; its parameters are W₁ᵀ, b₁, W₂ᵀ, b₂."""

    hidden_units: int = 1000

    @property
    def network(self) -> MlpNetwork:
        """The hidden layer and the output."""
        if self.hidden_units < 1:
            raise InputError(
                f"expected hidden_units of at least 1, got {self.hidden_units}; the paper has 1000"
            )
        return MlpNetwork(self.hidden_units)


@dataclass(eq=False)
class RidgeProbe(Probe):
    """g(e) = W e in closed form, with the penalty that is best on the validation tokens; see ``fit_ridge``."""

    penalties: tuple[float, ...] = PENALTIES
    distance: Distance = field(default="l2", init=False)
    solution_: RidgeFit | None = field(default=None, init=False, repr=False)

    def fit(
        self,
        hidden: Hidden,
        inputs: Inputs,
        validation_hidden: HeldHidden,
        validation_inputs: HeldInputs,
    ) -> "RidgeProbe":
        """Return self, solved for the training pairs with the penalty that is best on the validation pairs."""
        _check_pairs(training=(hidden, inputs), validation=(validation_hidden, validation_inputs))
        self.solution_ = fit_ridge(
            hidden, inputs, validation_hidden, validation_inputs, self.penalties
        )
        return self

    def fit_all(
        self, jobs: Jobs, hidden: Layers, targets: Targets, progress: Report | None = None
    ) -> list["RidgeProbe"]:
        """Return a fitted copy for each job; the rates and seeds of jobs are not used."""
        check_jobs(jobs, hidden, targets)
        fitted = []
        for number, job in enumerate(jobs, 1):
            train = job.pairs(hidden, targets, job.train)
            validation = job.pairs(hidden, targets, job.validation)
            fitted.append(replace(self).fit(*train, *validation))
            if progress is not None:
                progress(Progress(number, len(jobs), epoch=1))
        return fitted

    def transform(self, hidden: Hidden) -> Float[Tensor, "token d_out"]:
        """Return W e for every hidden state."""
        return _apply(LinearNetwork(), self.solution_ and (self.solution_.weight.T,), hidden)


def _apply(network: Network, parameters: Parameters | None, hidden: Tensor) -> Tensor:
    if parameters is None:
        raise InputError("expected a fitted probe, got one that is not fitted; call fit first")
    width = len(parameters[0])
    if hidden.shape[1] != width:
        raise InputError(
            f"expected hidden states of width {width}, as in fit, got width {hidden.shape[1]}; "
            "use a probe fitted on the same model"
        )
    return network.apply(parameters, hidden.to(parameters[0]))


def _check_pairs(**pairs: tuple[Tensor, Tensor]) -> None:
    for name, (hidden, inputs) in pairs.items():
        if len(hidden) != len(inputs):
            raise InputError(
                f"expected one input for each hidden state of {name}, got {len(hidden)} and {len(inputs)}"
            )
        check_finite(hidden, f"hidden states for {name}")
        check_finite(inputs, f"inputs for {name}")


def _check_widths(hidden: Tensor, inputs: Tensor) -> None:
    if hidden.shape[-1] != inputs.shape[-1]:
        raise InputError(
            f"expected hidden states as wide as the inputs, got {hidden.shape[-1]} and {inputs.shape[-1]}; "
            "only a learned map can compare them: use LinearProbe"
        )
