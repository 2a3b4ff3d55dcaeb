"""Training an identifiable encoder on one task with transformers' Trainer, as Bhardwaj et al. 2021, section 6, do."""

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import polars as pl
import torch
from transformers import (
    EvalPrediction,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from identilens.encoder.batches import EncodedExamples, collate_examples
from identilens.encoder.configuration import Heads, IdentifiableEncoderConfig
from identilens.encoder.modeling import IdentifiableEncoderForSequenceClassification
from identilens.encoder.readers import Text
from identilens.encoder.splits import Splits, read_splits
from identilens.encoder.tasks import Task, task_named
from identilens.encoder.tokenizer import build_tokenizer
from identilens.errors import InputError
from identilens.models.saving import save_model
from identilens.results.encoder_run import ANALYSIS, EPOCH_COLUMNS, EncoderRun
from identilens.results.files import write_json
from identilens.results.parts import whole
from identilens.results.provenance import provenance
from identilens.results.run_folder import RunFolder

Progress = Callable[[int, int | None, str], None]


@dataclass(frozen=True)
class TrainingSettings:
    """Everything that changes the numbers of a training run; defaults are the paper's.

    Attributes:
        heads: ``concat`` (Con) or ``add`` (Add).
        d_k: Size of queries and keys.
        d_v: Size of values; by ``heads`` when None.
        layers: Encoder layers.
        d_model: Embedding size.
        attention_heads: Heads.
        feed_forward: Width of the feed-forward block.
        dropout: Of embeddings, attention weights and sublayers.
        max_length: Tokens a text is cut to, [CLS] included.
        max_words: Size of the vocabulary at most.
        epochs: Passes over the training part; the best one by validation accuracy is kept.
        batch_size: Texts in a step, over all processes together.
        learning_rate: Of Adam, constant.
        precision: ``float32``, or autocast to ``bf16`` or ``fp16``.
        limit: Train on a random choice of so many rows (validation rows among them where they are split off).
        seed: Of the split, the first weights, dropout and the order of batches.
    """

    heads: Heads = "concat"
    d_k: int = 64
    d_v: int | None = None
    layers: int = 1
    d_model: int = 512
    attention_heads: int = 8
    feed_forward: int = 2048
    dropout: float = 0.1
    max_length: int = 512
    max_words: int = 100_000
    epochs: int = 20
    batch_size: int = 256
    learning_rate: float = 1e-3
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    limit: int | None = None
    seed: int = 0


def train(
    task: str,
    out: str | Path,
    *,
    data: str | Path | None = None,
    hub: str | None = None,
    settings: TrainingSettings | None = None,
    splits: Splits | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> EncoderRun:
    """Return a finished training run: the best epoch's model in ``out/model``, metrics of every epoch, test accuracy.

    Args:
        task: One of the ten tasks, such as ``trec``.
        out: Folder to fill: ``table.parquet`` (one row an epoch), ``metrics.json``, ``model`` (weights, configuration
            and tokenizer, for `identilens.load`) and, until the end, ``checkpoints``.
        data: Folder of local files; the hub when None.
        hub: Another id or folder for ``datasets`` than the task's own.
        settings: Sizes and schedule.
        splits: The task's parts, where they have been read already.
        resume: Go on after the last whole epoch of an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (steps done, steps in all, a note on the last epoch).

    Raises:
        InputError: For a task, file, row or setting that cannot be used, or if accelerate is not installed.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    chosen, wanted = settings or TrainingSettings(), task_named(task)
    _check(chosen)
    parts = splits or read_splits(
        wanted, None if data is None else Path(data), hub=hub, seed=chosen.seed, limit=chosen.limit
    )
    # Launched on several processes, the first one alone looks after the folder.
    processes = _processes()
    if chosen.batch_size % processes.num_processes:
        raise InputError(
            f"{processes.num_processes} processes cannot share batches of {chosen.batch_size} evenly. Choose a "
            "multiple of their number."
        )
    with processes.main_process_first():
        folder = RunFolder(
            Path(out), _record(wanted, parts, chosen),
            resume=resume or not processes.is_main_process, overwrite=overwrite and processes.is_main_process,
        )  # fmt: skip
    if not folder.finished:
        shown = progress if processes.is_main_process else None
        table, metrics = _run(folder.path, wanted, parts, chosen, processes.num_processes, shown)
        if processes.is_main_process:
            folder.write_part(0, {"table": table})
            write_json(folder.path / "metrics.json", metrics)
            folder.finish({"table": whole}, 1)
            shutil.rmtree(folder.path / "checkpoints", ignore_errors=True)
    processes.wait_for_everyone()
    return EncoderRun.load(folder.path)


def is_main_process() -> bool:
    """Return whether this is the one process, or the first of several that train together: the one that reports."""
    return bool(_processes().is_main_process)


def build_model(
    task: Task, tokenizer: PreTrainedTokenizerFast, settings: TrainingSettings
) -> IdentifiableEncoderForSequenceClassification:
    """Return an untrained classifier for a task, its first weights drawn from ``settings.seed``."""
    set_seed(settings.seed)
    config = IdentifiableEncoderConfig(
        vocab_size=len(tokenizer),
        heads=settings.heads,
        d_k=settings.d_k,
        d_v=settings.d_v,
        hidden_size=settings.d_model,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.attention_heads,
        intermediate_size=settings.feed_forward,
        max_position_embeddings=settings.max_length,
        dropout=settings.dropout,
        sentence_pairs=task.pair,
        id2label=dict(enumerate(task.labels)),
        label2id={label: index for index, label in enumerate(task.labels)},
    )
    return IdentifiableEncoderForSequenceClassification(config)


def _run(
    folder: Path, task: Task, parts: Splits, settings: TrainingSettings, processes: int, progress: Progress | None
) -> tuple[pl.DataFrame, dict[str, Any]]:
    # The Trainer brings a second or more of imports, which only training needs.
    from transformers import PrinterCallback, Trainer

    tokenizer = build_tokenizer(
        _sentences(parts.train.texts), max_words=settings.max_words, max_length=settings.max_length
    )
    model = build_model(task, tokenizer, settings)
    trainer = Trainer(
        model=model,
        args=_arguments(folder / "checkpoints", settings, processes),
        data_collator=collate_examples,
        train_dataset=EncodedExamples(parts.train, tokenizer),
        eval_dataset=EncodedExamples(parts.validation, tokenizer),
        processing_class=tokenizer,
        compute_metrics=_accuracy,
        callbacks=[_Reporter(progress)] if progress else None,
    )
    trainer.remove_callback(PrinterCallback)
    started = time.perf_counter()
    checkpoints = folder / "checkpoints"
    trainer.train(resume_from_checkpoint=get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None)
    seconds = time.perf_counter() - started
    table = _epochs(trainer.state.log_history)
    best = table.sort("validation_accuracy", "epoch", descending=[True, False]).row(0, named=True)
    tested = trainer.evaluate(EncodedExamples(parts.test, tokenizer), metric_key_prefix="test")  # type: ignore[arg-type]
    if trainer.is_world_process_zero():
        save_model(model, tokenizer, folder / "model")
    return table, {
        "task": task.name,
        **asdict(settings),
        "d_v": model.config.d_v,
        "best_epoch": best["epoch"],
        "validation_accuracy": best["validation_accuracy"],
        "test_accuracy": tested["test_accuracy"],
        "test_loss": tested["test_loss"],
        "train_rows": len(parts.train),
        "validation_rows": len(parts.validation),
        "test_rows": len(parts.test),
        "vocabulary": len(tokenizer),
        "parameters": model.num_parameters(),
        "processes": processes,
        "seconds": seconds,
    }


def _arguments(checkpoints: Path, settings: TrainingSettings, processes: int) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(checkpoints),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size // processes,
        per_device_eval_batch_size=settings.batch_size // processes,
        ddp_find_unused_parameters=False,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        bf16=settings.precision == "bf16",
        fp16=settings.precision == "fp16",
        use_cpu=not torch.accelerator.is_available(),
        dataloader_pin_memory=torch.accelerator.is_available(),
        remove_unused_columns=False,
        seed=settings.seed,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )


class _Reporter(TrainerCallback):
    """Hands the Trainer's steps to a progress function."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._note = ""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._progress(state.global_step, state.max_steps, self._note)

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        found = kwargs.get("metrics", {}).get("eval_accuracy")
        if found is not None:
            self._note = f"epoch {state.epoch or 0:.0f}: validation accuracy {found:.3f}"
            self._progress(state.global_step, state.max_steps, self._note)


def _accuracy(found: EvalPrediction) -> dict[str, float]:
    logits = found.predictions[0] if isinstance(found.predictions, tuple) else found.predictions
    return {"accuracy": float((logits.argmax(-1) == found.label_ids).mean())}


def _epochs(history: list[dict[str, float]]) -> pl.DataFrame:
    """Return the Trainer's log as one row an epoch."""
    losses = {round(entry["epoch"]): entry["loss"] for entry in history if "loss" in entry}
    rows = [
        (round(entry["epoch"]), losses.get(round(entry["epoch"])), entry["eval_loss"], entry["eval_accuracy"])
        for entry in history
        if "eval_accuracy" in entry
    ]
    return pl.DataFrame(rows, schema=EPOCH_COLUMNS, orient="row").sort("epoch")


def _record(task: Task, parts: Splits, settings: TrainingSettings) -> dict[str, Any]:
    texts = [repr((part.texts, part.labels)) for part in (parts.train, parts.validation, parts.test)]
    name = f"{task.name}, {settings.heads}, d_k = {settings.d_k}"
    return provenance(ANALYSIS, model={"name": name}, texts=texts, settings=asdict(settings), seed=settings.seed)


def _sentences(texts: tuple[Text, ...]) -> list[str]:
    return [sentence for text in texts for sentence in (text if isinstance(text, tuple) else (text,))]


def _processes() -> Any:
    """Return accelerate's view of the processes that run this program together; mostly there is one."""
    try:
        from accelerate import PartialState
    except ImportError as error:
        raise InputError("training needs: pip install 'identilens[train]'.") from error
    return PartialState(cpu=not torch.accelerator.is_available())


def _check(settings: TrainingSettings) -> None:
    for name in ("d_k", "layers", "d_model", "attention_heads", "feed_forward", "epochs", "batch_size"):
        if getattr(settings, name) < 1:
            raise InputError(f"{name} must be at least 1; got {getattr(settings, name)}.")
    if not settings.learning_rate > 0:
        raise InputError(f"learning_rate must be above 0; got {settings.learning_rate}.")
    if not 0 <= settings.dropout < 1:
        raise InputError(f"dropout must be in [0, 1); got {settings.dropout}.")
    if settings.max_length < 2:
        raise InputError(f"max_length must hold [CLS] and a word, 2 at least; got {settings.max_length}.")
