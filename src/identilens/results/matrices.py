"""Matrices of a result on disk: one safetensors file a text, its tokens beside it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from identilens.results.files import write_json, write_tensors


def of_text(matrices: Mapping[str, Tensor], text: int) -> dict[str, Tensor]:
    """Return the matrices of one text."""
    return {key: matrices[key] for key in matrices if key.startswith(f"text{text}.")}


def write_matrices(folder: Path, text: int, matrices: Mapping[str, Tensor], tokens: dict[str, list[str]]) -> None:
    """Write one text's matrices with its tokens beside them."""
    write_json(folder / "matrices" / f"text{text}.json", tokens)
    write_tensors(folder / "matrices" / f"text{text}.safetensors", matrices)


def write_all_matrices(
    folder: Path, matrices: Mapping[str, Tensor], tokens: Mapping[int, dict[str, list[str]]]
) -> None:
    """Write the matrices of every text with its tokens beside them."""
    for text, own in tokens.items():
        write_matrices(folder, text, of_text(matrices, text), own)


class StoredMatrices(Mapping[str, Tensor]):
    """Matrices on disk, read one by one when asked for.

    Attributes:
        tokens: Tokens of each text by sequence ("encoder", "decoder").
    """

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}
        for file in sorted(folder.glob("text*.safetensors"), key=lambda file: int(file.stem[4:])):
            self.tokens[int(file.stem[4:])] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            with safe_open(file, framework="pt") as tensors:
                self._files.update(dict.fromkeys(tensors.keys(), file))

    def __getitem__(self, key: str) -> Tensor:
        with safe_open(self._files[key], framework="pt") as tensors:
            return tensors.get_tensor(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
