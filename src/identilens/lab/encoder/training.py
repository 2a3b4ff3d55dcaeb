"""Training an identifiable encoder on one task with transformers' Trainer, as in Bhardwaj et al. 2021, section 6."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import torch
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    EvalPrediction,
    PreTrainedTokenizerFast,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import IdentifiableEncoderForSequenceClassification
from identilens.lab.encoder.readers import Examples, Splits
from identilens.lab.encoder.settings import EncoderSettings
from identilens.lab.encoder.tasks import TASKS, Task
from identilens.models.saving import save_model
from identilens.runs.files import write_folder
from identilens.runs.tables import Columns, Row, decimals, integers


def encoded_examples(examples: Examples, tokenizer: PreTrainedTokenizerFast) -> Any:
    """Return a row for each example, as the Trainer takes it: token ids, cut to the tokenizer's length, and the label.

    The sentences of a pair are encoded separately.
    """
    texts, labels = zip(*examples, strict=True)
    sides: list[Any] = list(zip(*texts, strict=True)) if isinstance(texts[0], tuple) else [texts]
    columns = {
        name: tokenizer(list(side), truncation=True).input_ids
        for name, side in zip(("input_ids", "pair_input_ids"), sides, strict=False)
    }
    return pl.DataFrame({**columns, "labels": labels}).to_dicts()


def collate_examples(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return a batch: ids padded with 0 on the right, their masks, and labels."""
    batch = {"labels": torch.tensor([row["labels"] for row in rows])}
    for name in rows[0].keys() - {"labels"}:
        ids = [torch.tensor(row[name]) for row in rows]
        ones = [torch.ones_like(row) for row in ids]
        batch[name] = pad_sequence(ids, batch_first=True)
        batch[name.replace("input_ids", "attention_mask")] = pad_sequence(ones, batch_first=True)
    return batch


Tell = Callable[[str, int], None]
"""Called after each epoch with its validation accuracy in words, and its number."""


def build_model(
    task: Task, tokenizer: PreTrainedTokenizerFast, settings: EncoderSettings
) -> IdentifiableEncoderForSequenceClassification:
    """Return an untrained classifier for a task, with initial weights drawn from ``settings.seed``."""
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
        initializer_std=settings.initial_std,
        dropout=settings.dropout,
        sentence_pairs=task.pair,
        id2label=dict(enumerate(task.labels)),
        label2id={label: index for index, label in enumerate(task.labels)},
    )
    return IdentifiableEncoderForSequenceClassification(config)


def training_arguments(folder: Path, settings: EncoderSettings) -> TrainingArguments:
    """Return what the Trainer is told: Adam with a constant rate, the best epoch by validation accuracy."""
    batch, accelerated = settings.batch_size, torch.accelerator.is_available()
    return TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        seed=settings.seed,
        per_device_train_batch_size=batch,
        per_device_eval_batch_size=batch,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=0.0,
        train_sampling_strategy="group_by_length",
        remove_unused_columns=False,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_strategy="epoch",
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        bf16=settings.precision == "bf16",
        fp16=settings.precision == "fp16",
        use_cpu=not accelerated,
        dataloader_pin_memory=accelerated,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
    )


OUTCOME: Columns = {
    "task": pl.String,
    "heads": pl.String,
    **integers("d_k", "d_v", "layers", "d_model", "attention_heads", "feed_forward"),
    **decimals("initial_std", "dropout"),
    **integers("max_length", "max_words", "epochs", "batch_size"),
    "learning_rate": pl.Float64,
    "precision": pl.String,
    **integers("limit", "seed", "best_epoch"),
    **decimals("validation_accuracy", "test_accuracy", "test_loss"),
    **integers("train_rows", "validation_rows", "test_rows", "vocabulary", "parameters"),
    "seconds": pl.Float64,
}
"""What is known of a training run: its settings, and metrics of the best epoch."""


def train_encoder(
    parts: Splits, settings: EncoderSettings, tell: Tell, folder: Path | None = None
) -> tuple[pl.DataFrame, Row]:
    """Return one row per epoch, and the metrics of the epoch with the best validation accuracy.

    The model of that epoch is saved to a folder, if one is given.
    """
    # Importing the Trainer needs a second or more, and only training uses it.
    from transformers import PrinterCallback, Trainer

    sentences = [
        sentence
        for text, _ in parts["train"]
        for sentence in (text if isinstance(text, tuple) else (text,))
    ]
    tokenizer = build_tokenizer(
        sentences, max_words=settings.max_words, max_length=settings.max_length
    )
    model = build_model(TASKS[settings.task], tokenizer, settings)
    course = _Course(tell)
    with TemporaryDirectory() as checkpoints:
        trainer = Trainer(
            model=model,
            args=training_arguments(Path(checkpoints), settings),
            data_collator=collate_examples,
            train_dataset=encoded_examples(parts["train"], tokenizer),
            eval_dataset=encoded_examples(parts["validation"], tokenizer),
            compute_metrics=_accuracy,
            callbacks=[course],
        )
        trainer.remove_callback(PrinterCallback)
        seconds = trainer.train().metrics["train_runtime"]
    table = pl.DataFrame(course.rows)
    best = table.sort("validation_accuracy", "epoch", descending=[True, False]).row(0, named=True)
    tested = trainer.evaluate(encoded_examples(parts["test"], tokenizer), metric_key_prefix="test")
    if folder is not None:
        write_folder(folder, partial(save_model, model, tokenizer))
    return table, {
        **settings.recorded(),
        "d_v": model.config.d_v,
        "best_epoch": best["epoch"],
        "validation_accuracy": best["validation_accuracy"],
        "test_accuracy": tested["test_accuracy"],
        "test_loss": tested["test_loss"],
        **{f"{part}_rows": len(examples) for part, examples in parts.items()},
        "vocabulary": len(tokenizer),
        "parameters": model.num_parameters(),
        "seconds": seconds,
    }


class _Course(TrainerCallback):
    """Losses and validation accuracy of each epoch, reported as they come."""

    def __init__(self, tell: Tell) -> None:
        self.tell = tell
        self.rows: list[Row] = []

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        if "eval_accuracy" in metrics:
            epoch, accuracy = round(state.epoch), metrics["eval_accuracy"]
            losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
            self.rows.append(
                {
                    "epoch": epoch,
                    "train_loss": losses[-1],
                    "validation_loss": metrics["eval_loss"],
                    "validation_accuracy": accuracy,
                }
            )
            self.tell(f"epoch {epoch}: validation accuracy {accuracy:.3f}", epoch)


def _accuracy(prediction: EvalPrediction) -> dict[str, float]:
    logits: Any = prediction.predictions
    return {"accuracy": float((logits.argmax(-1) == prediction.label_ids).mean())}


PADDING, UNKNOWN, FIRST = "[PAD]", "[UNK]", "[CLS]"

_SPACED = ("'", ".", ",", "(", ")", "!", "?")
_DROPPED = ('"',)
_BLANK = ("<br />", ";", ":")


def normalizer() -> normalizers.Normalizer:
    """Return the basic-English normalisation of Bhardwaj et al. 2021 (footnote 9).

    Text becomes lower case. Apostrophes, full stops, commas, brackets, exclamation and question marks become separate
    words. HTML line breaks, semicolons and colons become spaces. Double quotes are removed.
    """
    return normalizers.Sequence(
        [
            normalizers.Lowercase(),
            *(normalizers.Replace(mark, f" {mark} ") for mark in _SPACED),
            *(normalizers.Replace(mark, "") for mark in _DROPPED),
            *(normalizers.Replace(mark, " ") for mark in _BLANK),
            normalizers.Replace(Regex(r"\s+"), " "),
            normalizers.Strip(),
        ]
    )


def build_tokenizer(
    texts: Iterable[str], *, max_words: int = 100_000, max_length: int = 512
) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose vocabulary is the most frequent words of the texts, most frequent first.

    Each text is encoded as [CLS] and its words. The vocabulary has ``max_words`` entries, special tokens included;
    other words become [UNK]. With truncation, texts are cut to ``max_length`` tokens.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer()  # type: ignore[assignment]
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    special = [PADDING, UNKNOWN, FIRST]
    tokenizer.train_from_iterator(
        texts,
        trainers.WordLevelTrainer(
            vocab_size=max_words, special_tokens=special, show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(  # type: ignore[assignment]
        single=f"{FIRST} $A", special_tokens=[(FIRST, special.index(FIRST))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PADDING,
        unk_token=UNKNOWN,
        cls_token=FIRST,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
    )
