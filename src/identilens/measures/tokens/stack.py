"""Members of a stack of probes: their training data, and their losses batch by batch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf, isfinite

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from identilens.errors import InputError
from identilens.measures.tokens.lookup import Distance
from identilens.measures.tokens.networks import Network, Parameters, row_losses

PAPER_RATES = (0.003, 0.001, 0.0003, 0.0001, 0.00003, 0.00001, 0.000003)  # Brunner et al. 2020, B.1.


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


def check_jobs(
    jobs: Sequence[Job], hidden: Float[Tensor, "layer token d_in"], targets: Float[Tensor, "target token d_out"]
) -> None:
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


def batches(rows: Sequence[Tensor], size: int) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield, batch by batch, the members that have rows left, and these rows."""
    for parts in zip_longest(*(each.split(size) for each in rows)):
        left = [(place, part) for place, part in enumerate(parts) if part is not None]
        yield [place for place, _ in left], [part for _, part in left]


@dataclass(eq=False)
class Member:
    """One learning rate of a job; ``best`` are the parameters with the lowest validation loss, which is ``loss``."""

    job: Job
    rate: float
    generator: torch.Generator
    parameters: Parameters
    best: Parameters = ()
    loss: float = inf
    best_epoch: int = 0
    epochs: int = 0
    converged: bool = False

    def shuffled(self) -> Int[Tensor, " train"]:
        """Return the training rows in the order of a new epoch."""
        return self.job.train.cpu()[torch.randperm(len(self.job.train), generator=self.generator)]

    def record(self, loss: float, patience: int) -> bool:
        """Record the validation loss after an epoch; return whether training continues."""
        self.epochs += 1
        if loss < self.loss:
            self.loss, self.best_epoch = loss, self.epochs
            self.best = tuple(p.detach().clone() for p in self.parameters)
        self.converged = isfinite(loss) and self.epochs - self.best_epoch >= patience
        return isfinite(loss) and not self.converged


@dataclass(frozen=True, eq=False)
class Task:
    """What all members share: the data (stored once), the architecture and the loss."""

    hidden: Float[Tensor, "layer token d_in"]
    targets: Float[Tensor, "target token d_out"]
    network: Network
    distance: Distance

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision of members: float64 if the hidden states have it, else float32."""
        return torch.float64 if self.hidden.dtype == torch.float64 else torch.float32

    def initial(self, generator: torch.Generator) -> Parameters:
        """Return the parameters of an untrained member."""
        drawn = self.network.initial(self.hidden.shape[-1], self.targets.shape[-1], generator)
        return tuple(p.to(self.hidden.device, self.dtype).requires_grad_() for p in drawn)

    def member(self, job: Job, rate: float) -> Member:
        """Return an untrained member; all rates of a job have the same initial weights and the same batches."""
        generator = torch.Generator().manual_seed(job.seed)
        return Member(job, rate, generator, self.initial(generator))

    def losses(self, members: Sequence[Member], rows: Sequence[Tensor]) -> Float[Tensor, " member"]:
        """Return each member's mean loss over its own rows, computed as one stack."""
        device, tokens = self.hidden.device, self.hidden.shape[1]
        places = [(m.job.layer * tokens, m.job.target * tokens + m.job.offset) for m in members]
        layer, target = torch.tensor(places, device=device).T[..., None]
        # Padded with row 0, which is not counted.
        padded = pad_sequence(list(rows), batch_first=True).to(device)
        sizes = torch.tensor([len(each) for each in rows], device=device)[:, None]
        stacked = tuple(torch.stack(same) for same in zip(*(m.parameters for m in members), strict=True))
        predicted = self.network.apply(stacked, self._gather(self.hidden, padded + layer))
        each = row_losses(predicted, self._gather(self.targets, padded + target), self.distance)
        return (each * (torch.arange(padded.shape[1], device=device) < sizes) / sizes).sum(1)

    def _gather(self, vectors: Tensor, places: Int[Tensor, "member row"]) -> Float[Tensor, "member row d"]:
        """Return the vectors at positions that count over all layers."""
        # Row 0 of the padding has no neighbour to its left.
        chosen = vectors.flatten(0, 1).index_select(0, places.flatten().clamp(min=0))
        return chosen.view(*places.shape, -1).to(self.dtype)
