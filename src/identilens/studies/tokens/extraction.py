"""Hidden states of a corpus on disk: written batch by batch, read through a memory map, reused when nothing changed."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from numpy.lib.format import open_memmap
from torch import Tensor

from identilens.errors import InputError, NumericalError, OutputFolderError
from identilens.models.capture import Lengths, split_states
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.runs.files import translated_write_errors, write_json, write_table
from identilens.runs.progress import Progress
from identilens.studies.items import Items

BATCH_SIZE = 16
_TOLD_EVERY = 1000
MARK_BYTES = (
    256 * 2**20
)  # Between two marks of how far an extraction has come: what an interruption can cost.
_STATES = "states.npy"
_PARTIAL = "partial.npy"
_TOKENS = "tokens.parquet"
_RECORD = "states.json"
_MARK = "done.json"


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """Hidden states of a corpus, sentence after sentence, without padding, backed by a file in the folder.

    Layer 0 is the output of the embedding block, Brunner's x. Lengths are tokens in each sentence. The names of the
    tokens are in the file ``tokens.parquet``.
    """

    layers: Float[Tensor, "layer token d"]
    lengths: tuple[int, ...]
    token_ids: Int[Tensor, " token"]
    folder: Path


def extract(
    lens: Lens, items: Items, cache: Path, progress: Progress | None = None
) -> HiddenStates:
    """Return the hidden states of all layers on all texts, from ``cache`` where they are held there already.

    The states of one model on one list of texts lie in a folder of their own, named by a hash of the model's
    digest, its precision and all that it reads. They are one array [layer, token, d] in NumPy's own format,
    opened as a memory map: a corpus may be larger than memory. Sentences of like length share a batch, padding is
    cut away. An interrupted extraction goes on where it was; the array gets its name when it is whole. Size: layers
    x tokens x d x 4 bytes (half precision is stored as float32, double precision as it is).

    Of encoder-decoders, the encoder's states. The table of tokens is written first, then the states.

    Raises:
        InputError: For input that is not made of tokens.
        NumericalError: If a hidden state is NaN or infinite, naming the text.
        OutputFolderError: If the folder cannot be written or what it contains cannot be read.
    """
    folder = cache / fingerprint(lens, items)[:16]
    if not (folder / _RECORD).is_file():
        _fill(lens, items, folder, progress)
    tokens = _read_tokens(folder)
    try:
        # A private map: pages are read as they are needed, and nothing that is written to it reaches the file.
        array = np.load(folder / _STATES, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise _unreadable(folder, error) from error
    ids = torch.from_numpy(tokens["token_id"].to_numpy().copy())
    return HiddenStates(torch.from_numpy(array), tuple(_lengths(tokens)), ids, folder)


def fingerprint(lens: Lens, items: Items) -> str:
    """Return a hash that is equal for equal models, precisions and inputs."""
    digest = hashlib.sha256(f"{lens.digest} {lens.facts['dtype']}".encode())
    for read in items.digests:
        digest.update(read)
    return digest.hexdigest()


def check_tokens(item: Item, number: int) -> None:
    """Raise InputError unless a text is made of tokens."""
    if "input_ids" not in item.tensors:
        raise InputError(
            f"text {number} is not made of tokens (it contains {', '.join(sorted(item.tensors))}); "
            "token identifiability needs texts or token ids"
        )


def layer_shape(lens: Lens, item: Item) -> tuple[int, int, np.dtype]:
    """Return how many hidden states a token has, embeddings included, their width and their type on disk."""
    check_tokens(item, 0)
    states = _states(lens, [item])[0]
    if states.shape[1] != len(item.tensors["input_ids"]):
        raise InputError(
            f"expected one hidden state per token, got {states.shape[1]} for {len(item.tensors['input_ids'])} tokens; "
            "the model shortens its sequences, so its states have no input token of their own"
        )
    return (
        states.shape[0],
        states.shape[2],
        np.dtype("f8" if states.dtype == torch.float64 else "f4"),
    )


def _states(lens: Lens, items: list[Item]) -> list[Tensor]:
    """Return each item's states [layer, token, d]; of encoder-decoders, the encoder's."""
    states = []
    try:
        for numbers in lens.batches(items, range(len(items)), len(items)):
            batch = [items[number] for number in numbers]
            output, lengths = lens.run(batch, output_hidden_states=True), Lengths(batch)
            states += [
                split_states(output, lengths, index)["encoder"] for index in range(len(batch))
            ]
        return states
    except RuntimeError as error:
        raise InputError(
            f"the model's layers differ in width ({error}); probes need states of one width in all layers"
        ) from error


def _fill(lens: Lens, items: Items, folder: Path, progress: Progress | None) -> None:
    layers, width, kind = layer_shape(lens, items[0])
    with translated_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not (folder / _TOKENS).is_file():
        write_table(folder / _TOKENS, _token_table(items, progress))
    lengths = _lengths(_read_tokens(folder))
    starts = [0, *accumulate(lengths)]
    order = sorted(range(len(items)), key=lambda index: lengths[index])
    partial, mark = folder / _PARTIAL, folder / _MARK
    done = _done(partial, mark, (layers, starts[-1], width), kind)
    if done is None:
        with translated_write_errors(partial):
            open_memmap(partial, mode="w+", dtype=kind, shape=(layers, starts[-1], width))
        done = 0
    offset = open_memmap(partial, mode="r").offset
    row, unmarked = width * kind.itemsize, 0
    # Ordinary writes, not the map: a full disk is then an error and not the end of the process.
    with translated_write_errors(partial), partial.open("r+b") as file:
        while done < len(items):
            chosen = order[done : done + BATCH_SIZE]
            for index, states in zip(
                chosen, _states(lens, [items[index] for index in chosen]), strict=True
            ):
                if not bool(states.isfinite().all()):
                    raise NumericalError(
                        f"text {index}: hidden states have NaN or infinite entries; load the "
                        f"model in float32, or look for a "
                        "broken checkpoint"
                    )
                for layer, rows in enumerate(
                    states.cpu().to(torch.float64 if kind.itemsize == 8 else torch.float32)
                ):
                    file.seek(offset + (layer * starts[-1] + starts[index]) * row)
                    file.write(rows.contiguous().numpy().tobytes())
                unmarked += lengths[index] * layers * row
            done += len(chosen)
            if unmarked >= MARK_BYTES or done == len(items):
                file.flush()
                os.fsync(file.fileno())
                write_json(mark, {"texts": done})
                unmarked = 0
            if progress is not None:
                progress(done, len(items), "hidden states")
    with translated_write_errors(folder):
        partial.replace(folder / _STATES)
        mark.unlink(missing_ok=True)
    write_json(
        folder / _RECORD,
        {"fingerprint": fingerprint(lens, items), "model": lens.facts, "texts": len(items)},
    )


def _token_table(items: Sequence[Item], progress: Progress | None) -> pl.DataFrame:
    frames = []
    for start in range(0, len(items), _TOLD_EVERY):
        if progress is not None:
            progress(start, len(items), "tokens")
        some = items[start : start + _TOLD_EVERY]
        lengths = [len(item.tensors["input_ids"]) for item in some]
        frames.append(
            pl.DataFrame(
                {
                    "text": np.repeat(np.arange(start, start + len(some), dtype=np.int64), lengths),
                    "token_id": torch.cat([item.tensors["input_ids"] for item in some]).numpy(),
                    "token": [name for item in some for name in item.tokens["encoder"]],
                }
            )
        )
    return pl.concat(frames)


def _read_tokens(folder: Path) -> pl.DataFrame:
    try:
        return pl.read_parquet(folder / _TOKENS, glob=False)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise _unreadable(folder, error) from error


def _lengths(tokens: pl.DataFrame) -> list[int]:
    return tokens.group_by("text", maintain_order=True).len()["len"].to_list()


def _unreadable(folder: Path, error: Exception) -> OutputFolderError:
    return OutputFolderError(
        f"{folder} contains hidden states that cannot be read ({error}). Remove it."
    )


def _done(partial: Path, mark: Path, shape: tuple[int, int, int], kind: np.dtype) -> int | None:
    try:
        done = json.loads(mark.read_text(encoding="utf-8"))["texts"]
        array = open_memmap(partial, mode="r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return done if array.shape == shape and array.dtype == kind and isinstance(done, int) else None
