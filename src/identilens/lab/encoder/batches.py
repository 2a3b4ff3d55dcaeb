"""Texts as inputs of the model: encoded once, padded in each batch."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerFast

from identilens.lab.encoder.readers import Examples


class EncodedExamples(Dataset):
    """Examples as token ids, cut to the tokenizer's length; the sentences of a pair are encoded separately."""

    def __init__(self, examples: Examples, tokenizer: PreTrainedTokenizerFast) -> None:
        pairs = isinstance(examples.texts[0], tuple)
        sides: list[Any] = list(zip(*examples.texts, strict=True)) if pairs else [examples.texts]
        encoded = [tokenizer(list(side), truncation=True).input_ids for side in sides]
        names = (*("input_ids", "pair_input_ids")[: len(sides)], "labels")
        self._rows = [dict(zip(names, row, strict=True)) for row in zip(*encoded, examples.labels, strict=True)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]


def collate_examples(rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: ids padded with 0 on the right, their masks, and labels."""
    batch = {"labels": torch.tensor([row["labels"] for row in rows])}
    for name in (name for name in ("input_ids", "pair_input_ids") if name in rows[0]):
        ids = [torch.tensor(row[name]) for row in rows]
        batch[name] = pad_sequence(ids, batch_first=True)
        lengths = torch.tensor([len(row) for row in ids])
        mask = torch.arange(batch[name].shape[1]) < lengths[:, None]
        batch[name.replace("input_ids", "attention_mask")] = mask.long()
    return batch
