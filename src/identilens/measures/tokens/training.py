"""Training of many probes, of all layers, folds and learning rates, as one batched computation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.measures.tokens.lookup import Distance, check_finite
from identilens.measures.tokens.networks import Network
from identilens.measures.tokens.stack import Job, Pairs, Stack, check_jobs, new_stack, train_epoch, validation_losses

# Parameters that train at once on the CPU: about a third-level cache. Larger stacks are no faster there,
# they only move their parameters to and from memory at every step.
CPU_STACK_BYTES = 32 * 2**20
GPU_SHARE = 0.5


@dataclass(frozen=True)
class Schedule:
    """How long and in what steps members train.

    Attributes:
        distance: Loss, "cosine" or "l2".
        batch_size: Tokens a step.
        patience: Epochs without a lower validation loss after which a member stops.
        max_epochs: Epochs after which it stops in any case; the paper names no limit.
        stack_bytes: Memory for the members trained at once; None takes what fits the cache of the CPU or
            half of the free memory of the GPU. It changes the speed, not the result.
    """

    distance: Distance
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000
    stack_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best member of a job, and how every rate did.

    Attributes:
        parameters: Of the member and epoch with the lowest validation loss.
        learning_rate: Its rate.
        validation_loss: Its loss.
        losses: Lowest validation loss of each rate, in the order of the job; infinite where it diverged.
        best_epochs: Epoch of that loss, counted from 1; 0 where it diverged.
        epochs: Epochs each rate ran.
        converged: Whether each rate stopped for lack of improvement, not at the limit or diverging.
    """

    parameters: tuple[Tensor, ...]
    learning_rate: float
    validation_loss: float
    losses: tuple[float, ...]
    best_epochs: tuple[int, ...]
    epochs: tuple[int, ...]
    converged: tuple[bool, ...]


@dataclass(frozen=True)
class Progress:
    """Where training stands after an epoch.

    Attributes:
        jobs_done: Jobs that are finished.
        jobs: All jobs.
        epoch: Epoch of the stack in training.
        running: Its members that still train.
    """

    jobs_done: int
    jobs: int
    epoch: int
    running: int


class _Record:
    """What is known so far of one job: each rate's course, and the best parameters of all."""

    def __init__(self, rates: int) -> None:
        self.losses = [inf] * rates
        self.best_epochs = [0] * rates
        self.epochs = [0] * rates
        self.converged = [False] * rates
        self.best = inf
        self.rate = 0.0
        self.parameters: tuple[Tensor, ...] = ()

    def outcome(self) -> Outcome:
        return Outcome(
            self.parameters,
            self.rate,
            self.best,
            tuple(self.losses),
            tuple(self.best_epochs),
            tuple(self.epochs),
            tuple(self.converged),
        )


@torch.no_grad()
def train_probes(
    jobs: Sequence[Job],
    hidden: Float[Tensor, "layer token d_in"],
    targets: Float[Tensor, "target wanted d_out"],
    network: Network,
    schedule: Schedule,
    progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:
    """Return the best probe of each job, all trained together as stacked parameters.

    Brunner et al. 2020, B.1: Adam (0.9, 0.999), Glorot uniform weights, early stopping on the validation
    loss, the best rate of a search. Every member has its own batches, step count and early stopping, so it
    ends where it would end if trained alone with the same seed, to rounding. A member that stops leaves
    the stack. Training runs where ``hidden`` lives; the data is held once, whatever the number of members.

    Args:
        jobs: What to train; one job is one (layer, target, fold) with its rates.
        hidden: Hidden states e^l of every layer, sentence after sentence.
        targets: Vectors to predict: the inputs x as one set, or one set a layer.
        network: Architecture.
        schedule: Loss, batches, patience.
        progress: Called after every epoch of a stack.

    Raises:
        InputError: NaN in the data, a job without tokens or rates, or settings that make no sense.
        NumericalError: Every rate of a job diverged.
    """
    _check(jobs, hidden, targets, schedule)
    pairs = Pairs(hidden, targets.to(hidden.device))
    outcomes: dict[int, Outcome] = {}
    for chosen in _stacks(jobs, network, pairs, schedule):
        records = {number: _Record(len(jobs[number].rates)) for number in chosen}
        stack = new_stack({number: jobs[number] for number in chosen}, network, pairs, schedule.batch_size)
        for epoch in range(1, schedule.max_epochs + 1):
            train_epoch(
                stack, network, pairs, batch_size=schedule.batch_size, distance=schedule.distance, epoch=epoch - 1
            )
            losses = validation_losses(
                stack, network, pairs, batch_size=schedule.batch_size, distance=schedule.distance
            )
            running = _record(stack, records, losses, epoch, schedule.patience)
            left = len({stack.members[place][0] for place in running})
            if progress is not None:
                progress(Progress(len(outcomes) + len(chosen) - left, len(jobs), epoch, len(running)))
            if not running:
                break
            if len(running) < len(stack.members):
                stack = stack.keep(running)
        for number in chosen:
            outcomes[number] = _finished(jobs[number], records[number])
    return [outcomes[number] for number in range(len(jobs))]


def _record(stack: Stack, records: dict[int, _Record], losses: list[float], epoch: int, patience: int) -> list[int]:
    """Write an epoch's losses down, keep the parameters that are best so far, return who goes on."""
    running = []
    best: dict[int, int] = {}
    for place, ((job, rate), loss) in enumerate(zip(stack.members, losses, strict=True)):
        record = records[stack.numbers[job]]
        record.epochs[rate] = epoch
        if loss < record.losses[rate]:
            record.losses[rate], record.best_epochs[rate] = loss, epoch
            if loss < record.best:
                record.best = loss
                best[job] = place
        record.converged[rate] = isfinite(loss) and epoch - record.best_epochs[rate] >= patience
        if isfinite(loss) and not record.converged[rate]:
            running.append(place)
    for job, place in best.items():
        record = records[stack.numbers[job]]
        record.parameters, record.rate = stack.parameters(place), stack.jobs[job].rates[stack.members[place][1]]
    return running


def _finished(job: Job, record: _Record) -> Outcome:
    """Return the outcome of a job, or say that there is none."""
    if not record.parameters:
        raise NumericalError(
            f"expected a finite validation loss at one of the learning rates {job.rates}, got none for layer "
            f"{job.layer}; scale the hidden states or use smaller rates"
        )
    return record.outcome()


def _stacks(jobs: Sequence[Job], network: Network, pairs: Pairs, schedule: Schedule) -> Iterator[list[int]]:
    """Yield groups of jobs whose members fit the memory for one stack; at least one job each."""
    d_in, d_out = pairs.hidden.shape[-1], pairs.targets.shape[-1]
    entries = sum(p.numel() for p in network.initial(d_in, d_out, torch.Generator()))
    # Parameters, gradients and two moments.
    member = 4 * entries * pairs.dtype.itemsize
    budget = schedule.stack_bytes
    if budget is None and pairs.hidden.is_cuda:
        # What a batch takes beside the parameters is small: it is paid from the other half.
        budget = int(GPU_SHARE * torch.cuda.mem_get_info(pairs.hidden.device)[0])
    elif budget is None:
        budget = CPU_STACK_BYTES
    chosen: list[int] = []
    used = 0
    for number, job in enumerate(jobs):
        needed = member * len(job.rates)
        if chosen and used + needed > budget:
            yield chosen
            chosen, used = [], 0
        chosen.append(number)
        used += needed
    if chosen:
        yield chosen


def _check(jobs: Sequence[Job], hidden: Tensor, targets: Tensor, schedule: Schedule) -> None:
    """Raise InputError for data or settings that cannot be trained on."""
    check_jobs(jobs, hidden, targets)
    check_finite(hidden, "hidden states")
    check_finite(targets, "inputs")
    for name in ("batch_size", "patience", "max_epochs"):
        if getattr(schedule, name) < 1:
            raise InputError(f"expected {name} of at least 1, got {getattr(schedule, name)}")
    for job in jobs:
        if not job.rates or min(job.rates) <= 0:
            raise InputError(f"expected positive learning rates, got {job.rates}; the paper's are from 3e-6 to 3e-3")
