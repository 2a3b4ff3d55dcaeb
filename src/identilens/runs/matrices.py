"""Matrices of a result: their names, and their files on disk, one for each text with its tokens beside it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from identilens.runs.files import write_json, write_tensors

Tokens = Mapping[str, Sequence[str]]
"""Tokens of a text by sequence ("encoder", "decoder")."""


@dataclass(frozen=True)
class MatrixKey:
    """Name of one matrix: ``text{t}.layer{l}.head{h}.{kind}.{name}``; everything counts from 0, layers within a kind.

    The kind is ``encoder``, ``decoder`` or ``cross``; the name says what it holds, such as ``raw`` or ``effective``.
    """

    text: int
    layer: int
    head: int
    kind: str
    name: str

    def __str__(self) -> str:
        return f"text{self.text}.layer{self.layer}.head{self.head}.{self.kind}.{self.name}"

    @classmethod
    def parse(cls, key: str) -> "MatrixKey | None":
        """Return what a name says, or None for a name of another form."""
        match = re.fullmatch(r"text(\d+)\.layer(\d+)\.head(\d+)\.(\w+)\.(.+)", key)
        return match and cls(int(match[1]), int(match[2]), int(match[3]), match[4], match[5])

    def named(self, name: str) -> "MatrixKey":
        """Return the key of another matrix of the same head."""
        return replace(self, name=name)


class StoredMatrices(Mapping[str, Tensor]):
    """Matrices on disk, read one by one when they are asked for, and tokens of each text that has a file of its own."""

    def __init__(self, folder: Path) -> None:
        self._files: dict[str, Path] = {}
        self.tokens: dict[int, dict[str, list[str]]] = {}
        for file in sorted(folder.glob("*.safetensors"), key=_place):
            if (beside := file.with_suffix(".json")).is_file():
                self.tokens[_place(file)] = json.loads(beside.read_text(encoding="utf-8"))
            with safe_open(file, framework="pt") as tensors:
                self._files.update(dict.fromkeys(tensors.keys(), file))

    def __getitem__(self, key: str) -> Tensor:
        with safe_open(self._files[key], framework="pt") as tensors:
            return tensors.get_tensor(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def add_matrices(folder: Path, matrices: Mapping[str, Tensor], tokens: Mapping[int, Tokens]) -> None:
    """Write matrices into a result's folder: those of a text beside what its file holds, with its tokens."""
    place = folder / "matrices"
    for text, names in tokens.items():
        own = {key: matrices[key] for key in matrices if key.startswith(f"text{text}.")}
        file = place / f"text{text}.safetensors"
        write_json(file.with_suffix(".json"), {sequence: list(held) for sequence, held in names.items()})
        write_tensors(file, (load_file(file) if file.is_file() else {}) | own)
    shared = {key: matrices[key] for key in matrices if not re.match(r"text\d+\.", key)}
    if shared:
        write_tensors(place / "all.safetensors", shared)


def _place(file: Path) -> int:
    match = re.fullmatch(r"text(\d+)", file.stem)
    return int(match[1]) if match else -1
