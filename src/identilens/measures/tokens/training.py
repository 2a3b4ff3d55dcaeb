"""Training of many probes (all layers, folds and learning rates) as one batched computation."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Adam

from identilens.errors import InputError, NumericalError
from identilens.measures.tokens.lookup import Distance, check_finite
from identilens.measures.tokens.networks import Network, Parameters
from identilens.measures.tokens.splits import packed
from identilens.measures.tokens.stack import Job, Member, Task, batches, check_jobs

# Size of the parameters that are trained at once on the CPU: about a third-level cache. Larger stacks are not
# faster there: they move their parameters to and from memory at every step.
CPU_STACK_BYTES = 32 * 2**20
GPU_SHARE = 0.5
MEMBER_COPIES = (
    7  # Parameters, gradients, two moments, the best so far, and the stacked copy of a step with its gradient.
)


@dataclass(frozen=True)
class Schedule:
    """Batches and stopping of training.

    A step uses ``batch_size`` tokens. A member stops after ``patience`` epochs without a lower validation loss, or
    after ``max_epochs``; the paper gives no limit. ``stack_bytes`` is the memory for members that are trained at once.
    It changes the speed, not the result. None means the cache of the CPU, or half of the free memory of the GPU.
    """

    distance: Distance
    batch_size: int = 256
    patience: int = 20
    max_epochs: int = 1000
    stack_bytes: int | None = None


@dataclass(frozen=True, eq=False)
class Outcome:
    """The best member of a job, and the results of every rate in the order of the job.

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
    """The state of training after an epoch of a stack: finished jobs, all jobs, and members still in training."""

    jobs_done: int
    jobs: int
    epoch: int
    running: int


@torch.enable_grad()
def train_probes(
    jobs: Sequence[Job], hidden: Float[Tensor, "layer token d_in"], targets: Float[Tensor, "target token d_out"],
    network: Network, schedule: Schedule, progress: Callable[[Progress], None] | None = None,
) -> list[Outcome]:  # fmt: skip
    """Return the best probe of each job, all trained together as stacked parameters.

    Brunner et al. 2020, B.1: Adam (0.9, 0.999), Glorot uniform weights, early stopping on the validation loss, the best
    rate of a search. Every member has its own batches, step count and early stopping, so its result equals that of
    training it alone with the same seed, up to rounding. A member that stops leaves the stack. Training runs on the
    device of ``hidden``; the data are stored once for all members.

    Targets are the inputs x as one set, or one set per layer. ``progress`` is called after every epoch of a stack.

    Raises:
        InputError: NaN in the data, a job without tokens or rates, or settings out of range.
        NumericalError: Every rate of a job diverged.
    """
    _check(jobs, hidden, targets, schedule)
    task = Task(hidden, targets.to(hidden.device), network, schedule.distance)
    outcomes: list[Outcome] = []
    for chosen in _stacks(jobs, task, schedule.stack_bytes):
        members = [[task.member(job, rate) for rate in job.rates] for job in chosen]
        for epoch, running in enumerate(_epochs(task, list(chain.from_iterable(members)), schedule), 1):
            if progress is not None:
                left = sum(any(member in running for member in same) for same in members)
                progress(Progress(len(outcomes) + len(chosen) - left, len(jobs), epoch, len(running)))
        outcomes += [_outcome(same) for same in members]
    return outcomes


def _epochs(task: Task, members: list[Member], schedule: Schedule) -> Iterator[list[Member]]:
    groups = {member.rate: [] for member in members}
    for member in members:
        groups[member.rate] += member.parameters
    optimiser = Adam([{"params": same, "lr": rate} for rate, same in groups.items()], fused=True)
    while members and members[0].epochs < schedule.max_epochs:
        for active, rows in batches([member.shuffled() for member in members], schedule.batch_size):
            # Adam skips members without gradients: those that have stopped or have no rows left.
            optimiser.zero_grad()
            task.losses([members[place] for place in active], rows).sum().backward()
            optimiser.step()
        losses = _validation_losses(task, members, schedule.batch_size)
        members = [m for m, loss in zip(members, losses, strict=True) if m.record(loss, schedule.patience)]
        yield members


@torch.no_grad()
def _validation_losses(task: Task, members: list[Member], batch_size: int) -> list[float]:
    every = [member.job.validation.cpu() for member in members]
    total = torch.zeros(len(members), dtype=task.dtype, device=task.hidden.device)
    for active, rows in batches(every, batch_size):
        shares = [len(part) / len(every[place]) for place, part in zip(active, rows, strict=True)]
        total[active] += task.losses([members[place] for place in active], rows) * total.new_tensor(shares)
    return total.tolist()


def _outcome(members: list[Member]) -> Outcome:
    best = min(members, key=lambda member: member.loss)
    if not best.best:
        raise NumericalError(
            f"expected a finite validation loss at one of the learning rates {best.job.rates}, got none for layer "
            f"{best.job.layer}; scale the hidden states or use smaller rates"
        )
    courses = zip(*((m.loss, m.best_epoch, m.epochs, m.converged) for m in members), strict=True)
    return Outcome(best.best, best.rate, best.loss, *courses)


def _stacks(jobs: Sequence[Job], task: Task, budget: int | None) -> Iterator[list[Job]]:
    """Yield groups of jobs whose members fit into the memory of one stack; a group has at least one job."""
    size = MEMBER_COPIES * sum(p.nbytes for p in task.initial(torch.Generator()))
    room = CPU_STACK_BYTES if budget is None else budget
    if budget is None and task.hidden.is_cuda:
        # A batch needs little memory beside the parameters; it uses the other half.
        room = int(GPU_SHARE * torch.cuda.mem_get_info(task.hidden.device)[0])
    return packed(jobs, lambda group: size * sum(len(job.rates) for job in group) <= room)


def _check(jobs: Sequence[Job], hidden: Tensor, targets: Tensor, schedule: Schedule) -> None:
    check_jobs(jobs, hidden, targets)
    check_finite(hidden, "hidden states")
    check_finite(targets, "inputs")
    for name in ("batch_size", "patience", "max_epochs"):
        if getattr(schedule, name) < 1:
            raise InputError(f"expected {name} of at least 1, got {getattr(schedule, name)}")
    for job in jobs:
        if not job.rates or min(job.rates) <= 0:
            raise InputError(f"expected positive learning rates, got {job.rates}; the paper's are from 3e-6 to 3e-3")
