"""A stack of probes in training: one step of Adam, or one validation loss, for all of its members."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.optim.adam import adam

from identilens.errors import InputError
from identilens.measures.tokens.lookup import Distance
from identilens.measures.tokens.networks import Network, loss_gradient_, weighted_loss

# Brunner et al. 2020, B.1.
PAPER_RATES = (0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001, 0.000003)
BETAS = (0.9, 0.999)


@dataclass(frozen=True, eq=False)
class Job:
    """One probe to train, with every learning rate to try on it.

    Attributes:
        layer: Which hidden states it reads.
        target: Which inputs it predicts.
        train: Rows of its training tokens.
        validation: Rows of its validation tokens.
        rates: Learning rates; each makes one member of the stack.
        offset: Row r of the hidden states is paired with row r + offset of the inputs.
        seed: Of the initial weights and the batches; the same for every rate.
    """

    layer: int
    target: int
    train: Int[Tensor, " train"]
    validation: Int[Tensor, " validation"]
    rates: tuple[float, ...] = PAPER_RATES
    offset: int = 0
    seed: int = 0


def check_jobs(
    jobs: Sequence[Job], hidden: Float[Tensor, "layer token d_in"], targets: Float[Tensor, "target wanted d_out"]
) -> None:
    """Raise InputError unless every job has tokens and finds their pairs in the data.

    Args:
        jobs: The jobs.
        hidden: Hidden states of every layer.
        targets: Every set of vectors that may be predicted.
    """
    if hidden.shape[1] != targets.shape[1]:
        raise InputError(
            f"expected one input a hidden state, got {hidden.shape[1]} hidden states and {targets.shape[1]} inputs; "
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


@dataclass(frozen=True, eq=False)
class Pairs:
    """The vectors all members read, held once.

    Attributes:
        hidden: Hidden states of every layer.
        targets: Every set of vectors that may be predicted; the inputs, or lower layers.
    """

    hidden: Float[Tensor, "layer token d_in"]
    targets: Float[Tensor, "target token d_out"]

    @property
    def dtype(self) -> torch.dtype:
        """Return the type members compute in: float32, or float64 where the hidden states have it."""
        return torch.float64 if self.hidden.dtype == torch.float64 else torch.float32

    def places(self, jobs: Sequence[Job], rows: Int[Tensor, "job row"]) -> Int[Tensor, "side job row"]:
        """Return where each job's rows lie among all hidden states and among all targets.

        Padding is row 0, whose neighbour may lie outside: it is moved to any row that exists.
        """
        device = self.hidden.device
        tokens = self.hidden.shape[1]
        layer = torch.tensor([job.layer * tokens for job in jobs], device=device)[:, None]
        target = torch.tensor([job.target * tokens + job.offset for job in jobs], device=device)[:, None]
        last = len(self.targets) * tokens - 1
        return torch.stack([rows + layer, (rows + target).clamp(0, last)])

    def gather(self, places: Int[Tensor, "side job row"]) -> tuple[Tensor, Tensor]:
        """Return each job's features and wanted vectors at the given places."""
        return tuple(
            vectors.flatten(0, 1).index_select(0, place.flatten()).view(*place.shape, -1).to(self.dtype)
            for vectors, place in zip((self.hidden, self.targets), places, strict=True)
        )  # type: ignore[return-value]


@dataclass(frozen=True, eq=False)
class Stack:
    """Members in training, sorted by their steps an epoch, most first; a job's members are neighbours.

    Attributes:
        jobs: The jobs that still have members.
        numbers: What the caller knows each of them by.
        generators: One a job, for its batches.
        members: Position in ``jobs`` and position in that job's rates, of each member.
        rates: Learning rate of each member.
        scaled: Parameters, stacked along the first axis and divided by the rate.
        first: Adam's running mean of the gradient, for each parameter.
        second: Adam's running mean of its square.
    """

    jobs: list[Job]
    numbers: list[int]
    generators: list[torch.Generator]
    members: list[tuple[int, int]]
    rates: Float[Tensor, " member"]
    scaled: tuple[Tensor, ...]
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]

    def keep(self, places: list[int]) -> "Stack":
        """Return the stack of only the members at the given places, in their order."""
        used = sorted({self.members[place][0] for place in places})
        index = torch.tensor(places, device=self.rates.device)
        return Stack(
            [self.jobs[job] for job in used],
            [self.numbers[job] for job in used],
            [self.generators[job] for job in used],
            [(used.index(job), rate) for job, rate in (self.members[place] for place in places)],
            self.rates[index],
            *(tuple(p[index] for p in group) for group in (self.scaled, self.first, self.second)),
        )

    def parameters(self, place: int) -> tuple[Tensor, ...]:
        """Return a copy of one member's parameters."""
        return tuple(p[place] * self.rates[place] for p in self.scaled)


def new_stack(jobs: dict[int, Job], network: Network, pairs: Pairs, batch_size: int) -> Stack:
    """Return the stack of the members of numbered jobs before their first step."""
    numbers = sorted(jobs, key=lambda number: batch_count(jobs[number], batch_size), reverse=True)
    ordered = [jobs[number] for number in numbers]
    generators = [torch.Generator().manual_seed(job.seed) for job in ordered]
    d_in, d_out = pairs.hidden.shape[-1], pairs.targets.shape[-1]
    drawn = [network.initial(d_in, d_out, generator) for generator in generators]
    members = [(position, rate) for position, job in enumerate(ordered) for rate in range(len(job.rates))]
    device, dtype = pairs.hidden.device, pairs.dtype
    rates = torch.tensor([ordered[job].rates[rate] for job, rate in members], dtype=dtype, device=device)
    scaled = []
    for same in zip(*drawn, strict=True):
        stacked = torch.stack([same[job].to(device, dtype) for job, _ in members])
        scaled.append(stacked / rates.view(-1, *[1] * (stacked.ndim - 1)))
    first, second = (tuple(torch.zeros_like(p) for p in scaled) for _ in range(2))
    return Stack(ordered, numbers, generators, members, rates, tuple(scaled), first, second)


def batch_count(job: Job, batch_size: int) -> int:
    """Return the number of steps in an epoch of a job."""
    return -(-len(job.train) // batch_size)


def train_epoch(
    stack: Stack, network: Network, pairs: Pairs, *, batch_size: int, distance: Distance, epoch: int
) -> None:
    """Take every member through its training tokens once, in place.

    A job with fewer batches than others sits out the last steps: its parameters, its moments and its
    step count stay as they are, as if it were trained alone.

    Args:
        stack: The members.
        network: Their architecture.
        pairs: The data.
        batch_size: Tokens a step.
        distance: The loss.
        epoch: Epochs taken before this one.
    """
    shuffled = [
        job.train[torch.randperm(len(job.train), generator=generator).to(job.train.device)]
        for job, generator in zip(stack.jobs, stack.generators, strict=True)
    ]
    rows, real = _padded(shuffled, stack.rates.device)
    places = pairs.places(stack.jobs, rows)
    member_job = torch.tensor([job for job, _ in stack.members], device=stack.rates.device)
    blocks = _blocks(stack, batch_size)
    device = stack.rates.device
    steps = [[torch.tensor(float(epoch * count), device=device) for _, count in blocks] for _ in stack.scaled]
    for number in range(blocks[0][1]):
        turns = [turn for turn, (_, count) in enumerate(blocks) if number < count]
        active = blocks[turns[-1]][0].stop
        jobs = stack.members[active - 1][0] + 1
        batch = slice(number * batch_size, (number + 1) * batch_size)
        weight = real[:jobs, batch] / real[:jobs, batch].sum(1, keepdim=True).to(pairs.dtype)
        features, wanted, weight = (
            _per_member(values, member_job[:active]) for values in (*pairs.gather(places[:, :jobs, batch]), weight)
        )
        scaled, rates = tuple(p[:active] for p in stack.scaled), stack.rates[:active]
        predicted, saved = network.forward(scaled, rates, features)
        error = loss_gradient_(predicted, wanted, weight, distance)
        gradients = network.backward(scaled, rates, features, saved, error)
        _adam(stack, gradients, [blocks[turn][0] for turn in turns], [[each[turn] for turn in turns] for each in steps])


def validation_losses(
    stack: Stack, network: Network, pairs: Pairs, *, batch_size: int, distance: Distance
) -> list[float]:
    """Return each member's mean loss over its validation tokens.

    Args:
        stack: The members.
        network: Their architecture.
        pairs: The data.
        batch_size: Tokens at once.
        distance: The loss.
    """
    total = torch.zeros_like(stack.rates)
    member_job = torch.tensor([job for job, _ in stack.members], device=total.device)
    rows, real = _padded([job.validation for job in stack.jobs], total.device)
    places = pairs.places(stack.jobs, rows)
    weight = real / real.sum(1, keepdim=True).to(pairs.dtype)
    for start in range(0, rows.shape[1], batch_size):
        batch = slice(start, start + batch_size)
        features, wanted, share = (
            _per_member(values, member_job) for values in (*pairs.gather(places[..., batch]), weight[:, batch])
        )
        predicted, _ = network.forward(stack.scaled, stack.rates, features)
        total += weighted_loss(predicted, wanted, share, distance)
    return total.tolist()


def _padded(rows: list[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the jobs' rows filled up with row 0 to the longest, and which of them are real."""
    padded = pad_sequence(rows, batch_first=True).to(device)
    sizes = torch.tensor([len(each) for each in rows], device=device)
    return padded, torch.arange(padded.shape[1], device=device) < sizes[:, None]


def _blocks(stack: Stack, batch_size: int) -> list[tuple[slice, int]]:
    """Return the runs of members with equally many steps an epoch, and that many, most first.

    The members of a run share one step count, so Adam sees one tensor a run and parameter.
    """
    counts = [batch_count(stack.jobs[job], batch_size) for job, _ in stack.members]
    starts = [place for place, count in enumerate(counts) if place == 0 or counts[place - 1] != count]
    stops = [*starts[1:], len(counts)]
    return [(slice(start, stop), counts[start]) for start, stop in zip(starts, stops, strict=True)]


def _per_member(values: Tensor, member_job: Tensor) -> Tensor:
    """Return each job's values once for each of its members, without a copy where all share or none does."""
    if len(values) == 1:
        return values.expand(len(member_job), *values.shape[1:])
    return values if len(values) == len(member_job) else values[member_job]


def _adam(stack: Stack, gradients: tuple[Tensor, ...], blocks: list[slice], steps: list[list[Tensor]]) -> None:
    """Take one step of Adam at rate 1 with the scaled parameters of the given blocks of members, in place."""
    groups = (stack.scaled, gradients, stack.first, stack.second)
    parameters, slopes, first, second = ([p[block] for p in group for block in blocks] for group in groups)
    adam(
        parameters,
        slopes,
        first,
        second,
        max_exp_avg_sqs=[],
        state_steps=[step for each in steps for step in each],
        fused=True,
        amsgrad=False,
        beta1=BETAS[0],
        beta2=BETAS[1],
        lr=1.0,
        weight_decay=0.0,
        eps=1e-8,
        maximize=False,
    )
