"""Hidden states of a corpus on disk: written batch by batch, read through a memory map, reused when nothing changed."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.lib.format import open_memmap
from torch import Tensor

from identilens.errors import InputError, NumericalError, OutputFolderError
from identilens.models.capture import Lengths, split_states
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.runs.files import translated_write_errors
from identilens.studies.items import Items

BATCH_SIZE = 16


@dataclass(frozen=True, eq=False)
class HiddenStates:
    """Hidden states of a corpus, sentence after sentence, without padding, backed by a file.

    Layer 0 is the output of the embedding block, Brunner's x. Lengths are tokens in each sentence.
    """

    layers: Float[Tensor, "layer token d"]
    lengths: tuple[int, ...]
    token_ids: Int[Tensor, " token"]


def extract(lens: Lens, items: Items, cache: Path, tell: Callable[[str], None]) -> HiddenStates:
    """Return the hidden states of all layers on all texts, from ``cache`` where they are held there already.

    The states of one model on one list of texts lie in a folder of their own, named by a hash of the model's
    digest, its precision and all that it reads. They are one array [layer, token, d] in NumPy's own format,
    opened as a memory map: a corpus may be larger than memory. Sentences of like length share a batch, padding is
    cut away. The array gets its name when it is complete. Size: layers x tokens x d x 4 bytes (half precision is stored
    as float32, double precision as it is).

    Raises:
        InputError: For input that is not made of tokens.
        NumericalError: If a hidden state is NaN or infinite, naming the text.
        OutputFolderError: If the folder cannot be written or what it contains cannot be read.
    """
    folder = cache / fingerprint(lens, items)[:16]
    file = folder / "states.npy"
    ids = [item.tensors["input_ids"] for item in items]
    lengths = tuple(map(len, ids))
    if not file.is_file():
        with translated_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            _write(lens, items, lengths, folder / "partial.npy", tell)
            (folder / "partial.npy").replace(file)
    try:
        # A private map: pages are read as they are needed, and nothing that is written to it reaches the file.
        array = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise OutputFolderError(
            f"{folder} contains hidden states that cannot be read ({error}). Remove it."
        ) from error
    return HiddenStates(torch.from_numpy(array), lengths, torch.cat(ids))


def fingerprint(lens: Lens, items: Items) -> str:
    """Return a hash that is equal for equal models, precisions and inputs."""
    digest = hashlib.sha256(f"{lens.digest} {lens.facts['dtype']}".encode())
    for read in items.digests:
        digest.update(read)
    return digest.hexdigest()


def token_count(item: Item, number: int) -> int:
    """Return the number of tokens of a text.

    Raises:
        InputError: If it is not made of tokens.
    """
    if "input_ids" not in item.tensors:
        raise InputError(
            f"text {number} is not made of tokens (it contains {', '.join(sorted(item.tensors))}); "
            "token identifiability needs texts or token ids"
        )
    return len(item.tensors["input_ids"])


def read_states(lens: Lens, items: Sequence[Item]) -> list[Float[Tensor, "layer token d"]]:
    """Return the states of each text, embeddings first, in single or double precision; of two stacks the encoder's.

    Raises:
        InputError: If layers differ in width, or have other numbers of states than a text has tokens.
    """
    states = []
    try:
        for numbers in lens.batches(items, range(len(items)), len(items)):
            batch = [items[number] for number in numbers]
            output, lengths = lens.run(batch, output_hidden_states=True), Lengths(batch)
            states += [
                split_states(output, lengths, index)["encoder"] for index in range(len(batch))
            ]
    except RuntimeError as error:
        raise InputError(
            f"the model's layers differ in width ({error}); probes need states of one width in all layers"
        ) from error
    if states[0].shape[1] != len(items[0].tensors["input_ids"]):
        raise InputError(
            f"expected one hidden state per token, got {states[0].shape[1]} for "
            f"{len(items[0].tensors['input_ids'])} tokens; the model shortens its sequences, so its states have no "
            "input token of their own"
        )
    return [tensor.cpu().to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in states]


def _write(
    lens: Lens,
    items: Items,
    lengths: Sequence[int],
    partial: Path,
    tell: Callable[[str], None],
) -> None:
    first = read_states(lens, [items[0]])[0].numpy()
    starts = [0, *accumulate(lengths)]
    layers, tokens, width = len(first), starts[-1], first.shape[2]
    array = open_memmap(partial, mode="w+", dtype=first.dtype, shape=(layers, tokens, width))
    offset, row = array.offset, width * first.itemsize
    order = sorted(range(len(items)), key=lengths.__getitem__)
    # Ordinary writes, not the map: a full disk is then an error and not the end of the process.
    with partial.open("r+b") as file:
        for done in range(0, len(items), BATCH_SIZE):
            tell(f"hidden states of {done:,} of {len(items):,} texts")
            chosen = order[done : done + BATCH_SIZE]
            read = read_states(lens, [items[index] for index in chosen])
            for index, states in zip(chosen, read, strict=True):
                if not states.isfinite().all():
                    raise NumericalError(
                        f"text {index}: hidden states have NaN or infinite entries; load the model in float32, or "
                        "look for a broken checkpoint"
                    )
                for layer, rows in enumerate(states):
                    file.seek(offset + (layer * tokens + starts[index]) * row)
                    file.write(rows.contiguous().numpy().tobytes())
