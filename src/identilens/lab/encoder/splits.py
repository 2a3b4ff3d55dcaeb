"""A task's training, validation and test parts, divided as in the paper."""

from dataclasses import dataclass
from pathlib import Path

import torch

from identilens.errors import InputError
from identilens.lab.encoder.readers import Examples, Part, read_hub, read_local
from identilens.lab.encoder.tasks import Task

VALIDATION_SHARE = 0.3


@dataclass(frozen=True)
class Splits:
    """The three parts of a task."""

    train: Examples
    validation: Examples
    test: Examples


def read_splits(
    task: Task, data: Path | None = None, *, hub: str | None = None, seed: int = 0, limit: int | None = None
) -> Splits:
    """Return a task's parts (Bhardwaj et al. 2021, section 5), from local files or, without ``data``, from the hub.

    The task's own validation part is used if it has one; otherwise a random 30 % of the training part, drawn with
    ``seed``. ``limit`` is the number of training rows, chosen at random. If validation rows are taken from the training
    part, they are included in this number.

    Raises:
        InputError: For files or rows that cannot be used, or fewer than two training rows.
    """

    def read(part: Part) -> Examples:
        return read_hub(task, part, hub) if data is None else read_local(task, data, part)

    train, test = read("train"), read("test")
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).tolist()[:limit]
    if len(order) < 2:
        raise InputError(f"{task.name} needs at least two training rows; got {len(order)}. Raise --limit.")
    if task.validation:
        return Splits(_pick(train, order), read("validation"), test)
    held_out = max(1, round(VALIDATION_SHARE * len(order)))
    return Splits(_pick(train, order[held_out:]), _pick(train, order[:held_out]), test)


def _pick(examples: Examples, rows: list[int]) -> Examples:
    return Examples(tuple(examples.texts[row] for row in rows), tuple(examples.labels[row] for row in rows))
