"""Inputs of the reproductions: corpora, and encoders fine-tuned on MRPC, CoLA or SST with BERT's own recipe."""

import csv
import hashlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from identilens.models.bundled import resolved
from identilens.models.loading import load
from identilens.models.saving import save_model
from identilens.reproduce.options import CorpusSettings, FineTuning, Task, TunedFigure, TuningTasks
from identilens.runs.files import write_folder
from identilens.runs.lines import read_lines
from identilens.runs.progress import watched
from identilens.runs.texts import read_texts

Corpus = Literal["mrpc", "cola", "mnli", "ewt", "wiki"]
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "mrpc": ("mrpc/dev.tsv.xz", ("#1 String", "#2 String")),
    "mnli": ("mnli/dev_matched.tsv.xz", ("premise", "hypothesis")),
    "ewt": ("ud_ewt/en_ewt-ud-test.conllu.xz", ()),
    "wiki": ("wiki_en/segments_1000.jsonl.xz", ("par1", "par2")),
}
"""File of each corpus but CoLA, which is read as a task, and the columns of its texts."""
FIELDS: dict[Task, tuple[list[str] | None, str, tuple[str, ...]]] = {
    "mrpc": (None, "Quality", ("#1 String", "#2 String")),
    "cola": (["source", "label", "star", "sentence"], "label", ("sentence",)),
    "sst": (None, "label3", ("sentence",)),
}
"""Names of a task's columns where its file has no header, the column of the label, and those of the texts."""

HELD_OUT: dict[Task, str] = {"mrpc": "dev.tsv.xz", "cola": "dev.tsv", "sst": "dev.tsv.xz"}
"""File of each task's validation part."""

TRAINING = "train.tsv.xz"
"""File of every task's training part."""


def corpus_texts(
    settings: CorpusSettings, corpus: Corpus, most: int | None = None
) -> Sequence[Any]:
    """Return the first texts of a corpus: ``limit`` of them, by default the ``most`` of the paper, or all.

    Raises:
        InputError: If its file cannot be read.
    """
    limit = settings.limit or most
    if corpus == "cola":
        return held_out(corpus, settings.data, limit)
    name, columns = FILES[corpus]
    return read_texts(settings.data / name, columns=columns, limit=limit)


def labelled(task: Task, file: Path) -> tuple[list[tuple[str, ...]], list[int]]:
    """Return the texts (of one or two sentences) and labels of a file, labels counted from 0."""
    names, label, columns = FIELDS[task]
    lines = (line for _, line in read_lines(file))
    rows = list(csv.DictReader(lines, names, delimiter="\t", quoting=csv.QUOTE_NONE))
    order = sorted({row[label] for row in rows})
    texts = [tuple(row[column] for column in columns) for row in rows]
    return texts, [order.index(row[label]) for row in rows]


def held_out(task: Task, data: Path, limit: int | None) -> list[Any]:
    """Return the first texts or pairs of a task's validation part."""
    texts, _ = labelled(task, data / task / HELD_OUT[task])
    return [text if len(text) == 2 else text[0] for text in texts[:limit]]


def fine_tune(
    how: TunedFigure | TuningTasks, texts: Sequence[Any], labels: Sequence[int], folder: Path
) -> None:
    """Fine-tune a checkpoint on labelled texts, and save it to a folder."""
    torch.manual_seed(how.seed)
    texts, targets = texts[: how.rows], torch.tensor(labels[: how.rows])
    path = resolved(how.model)
    tokenizer: Any = AutoTokenizer.from_pretrained(path)
    tuned = AutoModelForSequenceClassification.from_pretrained(path, num_labels=len(set(labels)))
    tuned.train()
    optimiser = torch.optim.AdamW(tuned.parameters(), lr=how.learning_rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimiser,
        1.0,
        0.0,
        total_iters=how.epochs * -(-len(texts) // how.batch_size),
    )
    with watched("epochs", True) as report:
        for epoch in range(how.epochs):
            right = 0
            for chosen in torch.randperm(len(texts)).split(how.batch_size):
                sides = map(list, zip(*(texts[index] for index in chosen.tolist()), strict=True))
                batch = tokenizer(
                    *sides,
                    padding=True,
                    truncation=True,
                    max_length=how.longest,
                    return_tensors="pt",
                )
                output = tuned(**batch, labels=targets[chosen])
                output.loss.backward()
                torch.nn.utils.clip_grad_norm_(tuned.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                optimiser.zero_grad()
                right += int((output.logits.argmax(-1) == targets[chosen]).sum())
            if report:
                report(epoch + 1, how.epochs, f"training accuracy {right / len(texts):.3f}")
    write_folder(folder, partial(save_model, tuned, tokenizer))


def tuned_model(task: Task, settings: TunedFigure | TuningTasks, out: Path) -> Path:
    """Return the folder of a checkpoint fine-tuned on a task's training part.

    Its name has a digest of the task, the settings, the base model and the training part: a checkpoint that is there
    is used again.
    """
    texts, labels = labelled(task, settings.data / task / TRAINING)
    how = settings.values_of(FineTuning)
    record = repr((task, how, load(settings.model).digest, (texts, labels)))
    folder = out / f"tuned-{task}-{hashlib.sha256(record.encode()).hexdigest()[:12]}"
    # Written last: a checkpoint that was cut off is made again.
    if not (folder / "tokenizer_config.json").is_file():
        fine_tune(settings, texts, labels, folder)
    return folder
