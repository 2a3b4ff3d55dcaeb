"""Training of probes: every learning rate of every job, one after another."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.optim import Adam

from identilens.errors import InputError, NumericalError
from identilens.measures.tokens.lookup import Distance, check_finite
from identilens.measures.tokens.networks import Network, Parameters, mean_loss

PAPER_RATES = (
    0.003,
    0.001,
    0.0003,
    0.0001,
    0.00003,
    0.00001,
    0.000003,
)  # Brunner et al. 2020, B.1.
Layers = Float[Tensor, "layer token d_in"]
Targets = Float[Tensor, "target token d_out"]


@dataclass(frozen=True, eq=False)
class Job:
    """One probe to train with each of its rates. Row r of its layer is paired with row r + offset of its target."""

    layer: int
    target: int
    train: Int[Tensor, " train"]
    validation: Int[Tensor, " validation"]
    rates: tuple[float, ...] = PAPER_RATES
    offset: int = 0
    seed: int = 0

    def pairs(
        self, hidden: Layers, targets: Targets, rows: Int[Tensor, " row"]
    ) -> tuple[Tensor, Tensor]:
        """Return the hidden states of some rows, and the vectors that they are paired with."""
        rows = rows.to(hidden.device)
        return hidden[self.layer, rows], targets[self.target, rows + self.offset]


@dataclass(frozen=True)
class Schedule:
    """Batches and stopping of training.

    A step uses ``batch_size`` tokens. Training stops after ``patience`` epochs without a lower validation loss, or
    after ``max_epochs``; the paper gives no limit.
    """

    distance: Distance
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best probe of a job, and the results of every rate in the order of the job.

    The parameters are those of the epoch with the lowest validation loss. ``losses`` are the lowest losses of each
    rate, infinite if it diverged. ``best_epochs`` count from 1; 0 means that the rate diverged. ``converged`` is True
    if training stopped because the loss no longer improved, and False if it reached the limit or diverged.
    """

    parameters: Parameters
    learning_rate: float
    validation_loss: float
    losses: tuple[float, ...]
    best_epochs: tuple[int, ...]
    epochs: tuple[int, ...]
    converged: tuple[bool, ...]


@dataclass(frozen=True)
class Progress:
    """The state of training after an epoch: finished jobs, all jobs, and the epoch of the one in training."""

    jobs_done: int
    jobs: int
    epoch: int


@dataclass(frozen=True, eq=False)
class _Course:
    """The course of training with one rate."""

    rate: float
    best: Parameters
    loss: float
    best_epoch: int
    epochs: int
    converged: bool


def train_probes(
    jobs: Sequence[Job],
    hidden: Layers,
    targets: Targets,
    network: Network,
    schedule: Schedule,
    progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:
    """Return the best probe of each job.

    Brunner et al. 2020, B.1: Adam (0.9, 0.999), Glorot uniform weights, early stopping on the validation loss, the best
    rate of a search. All rates of a job have the same initial weights and the same batches. Training runs on the device
    of ``hidden``.

    Targets are the inputs x as one set, or one set per layer. ``progress`` is called after every epoch.

    Raises:
        InputError: NaN in the data, a job without tokens or rates, or settings out of range.
        NumericalError: Every rate of a job diverged.
    """
    _check(jobs, hidden, targets, schedule)
    targets = targets.to(hidden.device)
    outcomes = []
    for done, job in enumerate(jobs):

        def after_epoch(epoch: int, done: int = done) -> None:
            if progress is not None:
                progress(Progress(done, len(jobs), epoch))

        courses = [
            _train(job, rate, hidden, targets, network, schedule, after_epoch) for rate in job.rates
        ]
        best = min(courses, key=lambda course: course.loss)
        if not best.best:
            raise NumericalError(
                f"expected a finite validation loss at one of the learning rates {job.rates}, got none for layer "
                f"{job.layer}; scale the hidden states or use smaller rates"
            )
        outcomes.append(
            Outcome(
                parameters=best.best,
                learning_rate=best.rate,
                validation_loss=best.loss,
                losses=tuple(course.loss for course in courses),
                best_epochs=tuple(course.best_epoch for course in courses),
                epochs=tuple(course.epochs for course in courses),
                converged=tuple(course.converged for course in courses),
            )
        )
        if progress is not None:
            progress(Progress(done + 1, len(jobs), best.epochs))
    return outcomes


@torch.enable_grad()
def _train(
    job: Job,
    rate: float,
    hidden: Layers,
    targets: Targets,
    network: Network,
    schedule: Schedule,
    after_epoch: Callable[[int], None],
) -> _Course:
    """Train one probe with one rate until the validation loss no longer falls."""
    dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
    generator = torch.Generator().manual_seed(job.seed)
    initial = network.initial(hidden.shape[-1], targets.shape[-1], generator)
    parameters = tuple(tensor.to(hidden.device, dtype).requires_grad_() for tensor in initial)
    optimiser = Adam(parameters, lr=rate, fused=True)
    train, validation = (
        [tensor.to(dtype) for tensor in job.pairs(hidden, targets, rows)]
        for rows in (job.train, job.validation)
    )
    best, lowest, best_epoch, epoch, loss = (), inf, 0, 0, 0.0
    while epoch < schedule.max_epochs and epoch - best_epoch < schedule.patience and isfinite(loss):
        order = torch.randperm(len(job.train), generator=generator).to(hidden.device)
        for rows in order.split(schedule.batch_size):
            optimiser.zero_grad()
            features, wanted = (tensor[rows] for tensor in train)
            mean_loss(network.apply(parameters, features), wanted, schedule.distance).backward()
            optimiser.step()
        epoch += 1
        with torch.no_grad():
            features, wanted = validation
            loss = float(mean_loss(network.apply(parameters, features), wanted, schedule.distance))
        if loss < lowest:
            lowest, best_epoch = loss, epoch
            best = tuple(tensor.detach().clone() for tensor in parameters)
        after_epoch(epoch)
    converged = isfinite(loss) and epoch - best_epoch >= schedule.patience
    return _Course(
        rate=rate, best=best, loss=lowest, best_epoch=best_epoch, epochs=epoch, converged=converged
    )


def check_jobs(jobs: Sequence[Job], hidden: Layers, targets: Targets) -> None:
    """Raise InputError unless every job has tokens, and the data contain their pairs."""
    if hidden.shape[1] != targets.shape[1]:
        raise InputError(
            f"expected one input per hidden state, got {hidden.shape[1]} hidden states and {targets.shape[1]} inputs; "
            "take both from the same texts"
        )
    for job in jobs:
        if not (0 <= job.layer < len(hidden) and 0 <= job.target < len(targets)):
            raise InputError(
                f"expected a layer below {len(hidden)} and a target below {len(targets)}, got layer {job.layer} "
                f"and target {job.target}; both count from 0"
            )
        for name, rows in (("training", job.train), ("validation", job.validation)):
            if len(rows) == 0:
                raise InputError(
                    f"expected {name} tokens, got none for layer {job.layer} at offset {job.offset}; "
                    "use more text, longer sentences or a smaller offset"
                )
            low, high = int(rows.min()), int(rows.max())
            if low + min(0, job.offset) < 0 or high + max(0, job.offset) >= hidden.shape[1]:
                raise InputError(
                    f"expected {name} rows whose pairs lie within the {hidden.shape[1]} tokens, got rows from "
                    f"{low} to {high} at offset {job.offset}; make them with token_rows"
                )


def _check(jobs: Sequence[Job], hidden: Tensor, targets: Tensor, schedule: Schedule) -> None:
    check_jobs(jobs, hidden, targets)
    check_finite(hidden, "hidden states")
    check_finite(targets, "inputs")
    for name in ("batch_size", "patience", "max_epochs"):
        if getattr(schedule, name) < 1:
            raise InputError(f"expected {name} of at least 1, got {getattr(schedule, name)}")
    for job in jobs:
        if not job.rates or min(job.rates) <= 0:
            raise InputError(
                f"expected positive learning rates, got {job.rates}; the paper's are from 3e-6 to 3e-3"
            )
