"""Hidden states of a corpus on disk: written batch by batch, read through a memory map, reused when nothing changed."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Float, Int
from numpy.lib.format import open_memmap
from torch import Tensor

from identilens.errors import InputError, NumericalError, OutputFolderError
from identilens.models.capture import Lengths
from identilens.models.inputs import Item
from identilens.models.lens import Lens, split_states
from identilens.runs.files import translated_write_errors, write_json, write_table

Progress = Callable[[int, int], None]
BATCH_SIZE = 16
MARK_BYTES = 256 * 2**20  # Between two marks of how far an extraction has come: what an interruption can cost.
_STATES, _PARTIAL, _TOKENS, _RECORD, _MARK = "states.npy", "partial.npy", "tokens.parquet", "states.json", "done.json"


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """Hidden states of a corpus, sentence after sentence, without padding, backed by a file in the folder.

    Layer 0 is the output of the embedding block, Brunner's x. Lengths are tokens in each sentence.
    """

    layers: Float[Tensor, "layer token d"]
    lengths: tuple[int, ...]
    token_ids: Int[Tensor, " token"]
    tokens: tuple[str, ...]
    folder: Path


def extract(
    lens: Lens, texts: Any, cache: str | Path, *,
    max_length: int | None = None, batch_size: int = BATCH_SIZE, progress: Progress | None = None,
) -> HiddenStates:  # fmt: skip
    """Return the hidden states of all layers on all texts, from ``cache`` where they are held there already.

    The states of one model on one list of texts lie in a folder of their own, named by a hash of the model's
    digest, its precision and all that it reads. They are one array [layer, token, d] in NumPy's own format,
    opened as a memory map: a corpus may be larger than memory. Sentences of like length share a batch, padding is
    cut away. An interrupted extraction goes on where it was; the array gets its name when it is whole. Size: layers
    x tokens x d x 4 bytes (half precision is stored as float32, double precision as it is).

    Of encoder-decoders, the encoder's states. Texts are as in `InputReader.read`; progress is called with (texts done,
    texts in all) after each batch.

    Raises:
        InputError: For texts that cannot be used, or input that is not made of tokens.
        NumericalError: If a hidden state is NaN or infinite, naming the text.
        OutputFolderError: If the folder cannot be written or what it contains cannot be read.
    """
    items = lens.read(texts, max_length)
    if batch_size < 1:
        raise InputError(f"expected batch_size of at least 1, got {batch_size}")
    check_tokens(items)
    folder = Path(cache) / fingerprint(lens, items)[:16]
    if not (folder / _RECORD).is_file():
        _fill(lens, items, folder, batch_size, progress)
    return _opened(folder)


def fingerprint(lens: Lens, items: Sequence[Item]) -> str:
    """Return a hash that is equal for equal models, precisions and inputs."""
    digest = hashlib.sha256(f"{lens.digest} {lens.facts['dtype']}".encode())
    for item in items:
        digest.update(hashlib.sha256(item.identity.encode("utf-8", "surrogatepass")).digest())
    return digest.hexdigest()


def check_tokens(items: Sequence[Item]) -> None:
    """Raise InputError unless every text is made of tokens."""
    for index, item in enumerate(items):
        if "input_ids" not in item.tensors:
            raise InputError(
                f"text {index} is not made of tokens (it contains {', '.join(sorted(item.tensors))}); "
                "token identifiability needs texts or token ids"
            )


def layer_shape(lens: Lens, item: Item) -> tuple[int, int, np.dtype]:
    """Return how many hidden states a token has, embeddings included, their width and their type on disk."""
    states = _states(lens, [item])[0]
    if states.shape[1] != len(item.tensors["input_ids"]):
        raise InputError(
            f"expected one hidden state per token, got {states.shape[1]} for {len(item.tensors['input_ids'])} tokens; "
            "the model shortens its sequences, so its states have no input token of their own"
        )
    return states.shape[0], states.shape[2], np.dtype("f8" if states.dtype == torch.float64 else "f4")


def _states(lens: Lens, items: list[Item]) -> list[Tensor]:
    """Return each item's states [layer, token, d]; of encoder-decoders, the encoder's."""
    output = lens.run(items, output_hidden_states=True)
    lengths = Lengths(items)
    try:
        return [split_states(output, lengths, index)["encoder"] for index in range(len(items))]
    except RuntimeError as error:
        raise InputError(
            f"the model's layers differ in width ({error}); probes need states of one width in all layers"
        ) from error


def _fill(lens: Lens, items: list[Item], folder: Path, batch_size: int, progress: Progress | None) -> None:
    layers, width, kind = layer_shape(lens, items[0])
    lengths = [len(item.tensors["input_ids"]) for item in items]
    starts = [0, *accumulate(lengths)]
    order = sorted(range(len(items)), key=lambda index: lengths[index])
    with translated_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
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
            chosen = order[done : done + batch_size]
            for index, states in zip(chosen, _states(lens, [items[index] for index in chosen]), strict=True):
                if not bool(states.isfinite().all()):
                    raise NumericalError(
                        f"text {index}: hidden states have NaN or infinite entries; load the model in float32, or look "
                        "for a broken checkpoint"
                    )
                for layer, rows in enumerate(states.cpu().to(torch.float64 if kind.itemsize == 8 else torch.float32)):
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
                progress(done, len(items))
    _finish(lens, items, lengths, folder)


def _finish(lens: Lens, items: list[Item], lengths: list[int], folder: Path) -> None:
    tokens = {
        "text": np.repeat(np.arange(len(items), dtype=np.int64), lengths),
        "token_id": torch.cat([item.tensors["input_ids"] for item in items]).numpy(),
        "token": [name for item in items for name in item.tokens["encoder"]],
    }
    write_table(folder / _TOKENS, pl.DataFrame(tokens))
    with translated_write_errors(folder):
        (folder / _PARTIAL).replace(folder / _STATES)
        (folder / _MARK).unlink(missing_ok=True)
    write_json(folder / _RECORD, {"fingerprint": fingerprint(lens, items), "model": lens.facts, "texts": len(items)})


def _done(partial: Path, mark: Path, shape: tuple[int, int, int], kind: np.dtype) -> int | None:
    try:
        done = json.loads(mark.read_text(encoding="utf-8"))["texts"]
        array = open_memmap(partial, mode="r")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return done if array.shape == shape and array.dtype == kind and isinstance(done, int) else None


def _opened(folder: Path) -> HiddenStates:
    try:
        # A private map: pages are read as they are needed, and nothing that is written to it reaches the file.
        array = np.load(folder / _STATES, mmap_mode="c", allow_pickle=False)
        tokens = pl.read_parquet(folder / _TOKENS, glob=False)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise OutputFolderError(f"{folder} contains hidden states that cannot be read ({error}). Remove it.") from error
    lengths = tokens.group_by("text", maintain_order=True).len()["len"].to_list()
    ids = torch.from_numpy(tokens["token_id"].to_numpy().copy())
    return HiddenStates(torch.from_numpy(array), tuple(lengths), ids, tuple(tokens["token"].to_list()), folder)
