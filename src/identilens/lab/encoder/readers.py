"""Reading a task's texts and labels from local files or from the hub, and its parts, divided as in the paper."""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from identilens.errors import InputError
from identilens.lab.encoder.tasks import Task
from identilens.runs.lines import kind_of, read_lines

Part = Literal["train", "validation", "test"]
Text = str | tuple[str, str]

_Read = tuple[str, list[str], str]
_FILES = {"train": ("train",), "validation": ("dev", "valid", "validation"), "test": ("test",)}


@dataclass(frozen=True)
class Examples:
    """Texts (or pairs) with their classes, numbered from 0."""

    texts: tuple[Text, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.texts)


def read_local(task: Task, folder: Path, part: Part) -> Examples:
    """Return one part of a task from a folder of files.

    The part is the one file whose name starts with train, dev (or valid) or test and ends in .tsv or .csv, also
    compressed as .gz or .xz. A .tsv file has a header with the task's columns and no quoting. A .csv file has the form
    of Zhang et al. 2015: quoted, no header, a label counted from 1, then title and text (or only text).

    Raises:
        InputError: If there is no such file or more than one, or for a row that cannot be used, with its line.
    """
    place = folder / task.name if (folder / task.name).is_dir() else folder
    files = [
        path
        for path in sorted(place.glob("*.*"))
        if path.name.startswith(_FILES[part]) and kind_of(path) in (".tsv", ".csv")
    ]
    if len(files) != 1:
        names = ", ".join(path.name for path in files) or "none"
        raise InputError(
            f"{place} needs one {part} file of {task.name} ({_FILES[part][0]}*.tsv or .csv, also .gz or .xz); found "
            f"{names}. Pass the folder of the task, or the folder above it, with --data."
        )
    file = files[0]
    parse = _tsv if kind_of(file) == ".tsv" else _csv
    try:
        return _examples(task, parse(task, file, (line for _, line in read_lines(file))))
    except csv.Error as error:
        raise InputError(f"{file} cannot be read: {error}.") from error


def read_hub(task: Task, part: Part) -> Examples:
    """Return one part of a task from the hub, through ``datasets``.

    Rows without a gold label (−1) are left out, as in the paper.

    Raises:
        InputError: If ``datasets`` is not installed, the data cannot be loaded, or a row cannot be used.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise InputError(
            "reading from the hub needs: pip install 'identilens[datasets]'. Or pass --data."
        ) from error
    try:
        loaded: Any = load_dataset(task.hub, split=part, revision=task.revision)
    except Exception as error:  # datasets raises many kinds: connection, file, value, build errors
        raise InputError(
            f"{task.hub} cannot be loaded ({' '.join(str(error).split())!r:.200}). "
            "Check the connection, or pass a folder of files with --data."
        ) from error
    columns = task.hub_text or task.text
    classes = task.hub_classes or range(len(task.labels))
    names: Any = {number: task.labels[index] for number, index in enumerate(classes)}
    return _examples(
        task,
        (
            (
                f"{task.hub}, {part} row {number}",
                [row[column] or "" for column in columns],
                names.get(row[task.hub_label], row[task.hub_label]),
            )
            for number, row in enumerate(loaded)
            if row[task.hub_label] != -1
        ),
    )


def _tsv(task: Task, file: Path, stream: Iterable[str]) -> Iterator[_Read]:
    reader = csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)
    # The title is optional: some releases have it inside the text.
    missing = {task.label, *task.text} - {"title", *(reader.fieldnames or ())}
    if missing:
        raise InputError(
            f"{file}: no column {', '.join(sorted(missing))} in its header {reader.fieldnames}."
        )
    for row in reader:
        where = f"{file}, line {reader.line_num}"
        if None in row or None in row.values():
            raise InputError(
                f"{where}: expected {len(reader.fieldnames or ())} columns. Correct or remove the line."
            )
        yield where, [row.get(name, "") for name in task.text], row[task.label]


def _csv(task: Task, file: Path, stream: Iterable[str]) -> Iterator[_Read]:
    reader = csv.reader(stream)
    for row in reader:
        where = f"{file}, line {reader.line_num}"
        if len(row) < 2 or (task.pair and len(row) != 3):
            raise InputError(
                f"{where}: expected a label and {'two texts' if task.pair else 'a text'}; got {row!r:.80}."
            )
        label, *cells = row
        texts = [cell.replace("\\n", " ").replace('\\"', '"').replace("\\", " ") for cell in cells]
        yield where, texts, label.strip()


def _examples(task: Task, rows: Iterable[_Read]) -> Examples:
    """Return the texts and classes of rows: where each stands, the pieces of its text, its label."""
    texts, labels = [], []
    for where, pieces, label in rows:
        if label not in task.labels:
            raise InputError(f"{where}: label {label!r} is not one of {', '.join(task.labels)}.")
        labels.append(task.labels.index(label))
        filled = [piece for piece in pieces if piece.strip()]
        if len(filled) < (2 if task.pair else 1):
            raise InputError(f"{where}: a text is empty. Remove the row.")
        texts.append(tuple(pieces) if task.pair else " ".join(filled))
    if not texts:
        raise InputError(f"a file of {task.name} contains no rows.")
    return Examples(tuple(texts), tuple(labels))


VALIDATION_SHARE = 0.3


@dataclass(frozen=True)
class Splits:
    """The three parts of a task."""

    train: Examples
    validation: Examples
    test: Examples


def read_part(task: Task, part: Part, data: Path | None = None) -> Examples:
    """Return one part of a task from local files or, without ``data``, from the hub."""
    return read_hub(task, part) if data is None else read_local(task, data, part)


def read_splits(
    task: Task,
    data: Path | None = None,
    *,
    seed: int = 0,
    limit: int | None = None,
) -> Splits:
    """Return a task's parts (Bhardwaj et al. 2021, section 5), from local files or, without ``data``, from the hub.

    The task's own validation part is used if it has one; otherwise a random 30 % of the training part, drawn with
    ``seed``. ``limit`` is the number of training rows, chosen at random. If validation rows are taken from the training
    part, they are included in this number.

    Raises:
        InputError: For files or rows that cannot be used, or fewer than two training rows.
    """
    train, test = (read_part(task, part, data) for part in ("train", "test"))
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed)).tolist()[
        :limit
    ]
    if len(order) < 2:
        raise InputError(
            f"{task.name} needs at least two training rows; got {len(order)}. Raise --limit."
        )
    if task.validation:
        return Splits(_pick(train, order), read_part(task, "validation", data), test)
    held_out = max(1, round(VALIDATION_SHARE * len(order)))
    return Splits(_pick(train, order[held_out:]), _pick(train, order[:held_out]), test)


def _pick(examples: Examples, rows: list[int]) -> Examples:
    return Examples(
        tuple(examples.texts[row] for row in rows), tuple(examples.labels[row] for row in rows)
    )
