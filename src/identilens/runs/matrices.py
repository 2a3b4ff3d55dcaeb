"""Matrices of a result: their names, and their files, one for each text with its tokens beside it."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from identilens.runs.files import Manifest, write_json, write_tensors
from identilens.runs.reading import errors_naming, read_json

Matrices = Mapping[str, Tensor]
"""Matrices by name."""

Tokens = Mapping[str, Sequence[str]]
"""Tokens of a text by sequence ("encoder", "decoder")."""


@dataclass(frozen=True)
class MatrixKey:
    """Name of one matrix: ``text{t}.layer{l}.head{h}.{kind}.{name}``; everything counts from 0, layers within a kind.

    The kind is ``encoder``, ``decoder`` or ``cross``; the name says what it contains, such as ``raw`` or ``effective``.
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


class StoredMatrices(Matrices):
    """Matrices of a run on disk, read when they are accessed.

    Args:
        files: The files.

    Raises:
        OutputFolderError: If a file is damaged, naming the file.
    """

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, Path] = {}
        for file in files:
            with errors_naming(file), safe_open(file, framework="pt") as tensors:
                names = [key for key in tensors.keys() if not key.startswith(TABLE)]  # noqa: SIM118
            self._files |= dict.fromkeys(names, file)

    def __getitem__(self, key: str) -> Tensor:
        file = self._files[key]
        with errors_naming(file), safe_open(file, framework="pt") as tensors:
            return tensors.get_tensor(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


TABLE = "table/"
"""Beginning of the name of a table in the file of a part, beside its matrices."""


def stored_matrices(manifest: Manifest) -> tuple[StoredMatrices, dict[int, dict[str, list[str]]]]:
    """Return the saved matrices of a finished run, and the tokens of each text that has a file."""
    files = [manifest.root / name for name in manifest.under("matrices/")]
    tokens = {int(file.stem[4:]): read_json(file) for file in files if file.suffix == ".json"}
    return StoredMatrices(file for file in files if file.suffix == ".safetensors"), tokens


def write_matrices(folder: Path, matrices: Matrices, tokens: Mapping[int, Tokens]) -> None:
    """Write matrices into a result's folder: a file and its tokens for each text, and a file for all other matrices."""
    groups: dict[str, list[str]] = {}
    for key in matrices:
        match = re.match(r"text\d+(?=\.)", key)
        groups.setdefault(match[0] if match else "all", []).append(key)
    for text, names in tokens.items():
        write_json(folder / "matrices" / f"text{text}.json", names)
    for name, keys in groups.items():
        content = {key: matrices[key] for key in keys}
        write_tensors(folder / "matrices" / f"{name}.safetensors", content)
