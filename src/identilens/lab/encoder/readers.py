"""Reading a task's texts and labels from files, and its parts, divided as in the paper."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import torch

from identilens.errors import InputError
from identilens.lab.drawing import seeded
from identilens.lab.encoder.settings import EncoderSettings
from identilens.lab.encoder.tasks import TASKS, Task
from identilens.runs.lines import kind_of, read_lines

Part = Literal["train", "validation", "test"]
Text = str | tuple[str, ...]

_Row = tuple[str | None, Sequence[str | None]]
"""The label of a row, and the pieces of its text."""
_FILES = {"train": ("train",), "validation": ("dev", "valid", "validation"), "test": ("test",)}
VALIDATION_SHARE = 0.3


Examples = list[tuple[Text, int]]
"""Texts (or pairs) with their classes, numbered from 0."""

Splits = dict[Part, Examples]
"""The three parts of a task."""


def read_part(task: Task, folder: Path, part: Part) -> Examples:
    """Return one part of a task from a folder of files.

    The part is the one file whose name starts with train, dev (or valid) or test and ends in .tsv or .csv, also
    compressed as .gz or .xz. A .tsv file has a header with the task's columns and no quoting. A .csv file has the form
    of Zhang et al. 2015: quoted, no header, a label counted from 1, then title and text (or only text).

    Raises:
        InputError: If there is no such file or more than one, or for a row that cannot be used.
    """
    folder = folder / task.name if (folder / task.name).is_dir() else folder
    files = [
        path
        for path in sorted(folder.glob("*.*"))
        if path.name.startswith(_FILES[part]) and kind_of(path) in (".tsv", ".csv")
    ]
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise InputError(
            f"{folder} needs one {part} file of {task.name} ({_FILES[part][0]}*.tsv or .csv, also .gz or .xz), got "
            f"{names}. Pass the folder of the task, or the folder above it, with --data."
        )
    (file,) = files
    lines = (line for _, line in read_lines(file))
    rows = _tsv(task, lines) if kind_of(file) == ".tsv" else _csv(lines)
    examples: Examples = []
    for number, (label, pieces) in enumerate(rows, 1):
        filled = tuple(piece for piece in pieces if piece and piece.strip())
        if label not in task.labels or len(filled) < (2 if task.pair else 1):
            raise InputError(
                f"{file}, row {number}: expected {'two texts' if task.pair else 'a text'} with one of the labels "
                f"{', '.join(task.labels)}; got label {label!r} and {len(filled)} of the columns "
                f"{', '.join(task.text)}. Correct or remove the row."
            )
        text = filled if task.pair else " ".join(filled)
        examples.append((text, task.labels.index(label)))
    return examples


def _tsv(task: Task, lines: Iterable[str]) -> Iterator[_Row]:
    for row in csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE):
        # Some releases have the title inside the text.
        yield row.get(task.label), [row.get(name) for name in task.text]


def _csv(lines: Iterable[str]) -> Iterator[_Row]:
    for label, *cells in filter(None, csv.reader(lines)):
        texts = [cell.replace("\\n", " ").replace('\\"', '"').replace("\\", " ") for cell in cells]
        yield label.strip(), texts


def splits_of(settings: EncoderSettings) -> Splits:
    """Return the parts of a training run's task (Bhardwaj et al. 2021, section 5).

    The task's own validation part is used if it has one; otherwise a random 30 % of the training part, drawn with the
    seed. ``limit`` is the number of training rows, chosen at random. If validation rows are taken from the training
    part, they are included in this number.

    Raises:
        InputError: For files or rows that cannot be used, or fewer than two training rows.
    """
    task, data = TASKS[settings.task], settings.data
    train, test = (read_part(task, data, part) for part in ("train", "test"))
    order = torch.randperm(len(train), generator=seeded(settings.seed))
    chosen = [train[row] for row in order[: settings.limit].tolist()]
    if len(chosen) < 2:
        raise InputError(
            f"{task.name} needs at least two training rows; got {len(chosen)}. Raise --limit."
        )
    if task.validation:
        return {"train": chosen, "validation": read_part(task, data, "validation"), "test": test}
    held_out = max(1, round(VALIDATION_SHARE * len(chosen)))
    return {"train": chosen[held_out:], "validation": chosen[:held_out], "test": test}
