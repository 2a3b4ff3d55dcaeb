"""Options that many commands share, each group once, and what is made of them."""

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from cyclopts import Parameter
from rich.console import Console

from identilens.errors import InputError
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.models.media import read_audio, read_image
from identilens.runs.settings import REPEATED, Names, Settings
from identilens.runs.texts import read_texts

console = Console()


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Settings):
    """The model.

    Attributes:
        model: Hub id or local folder of a transformers model; bundled or bundled-decoder for those that come along.
        device: Where to run: cpu, cuda, cuda:1, mps; the best there is by default.
        dtype: Precision to load the model in; the checkpoint's own by default.
        trust_remote_code: Run Python code that comes with the checkpoint.
    """

    model: Annotated[str, Parameter(alias="-m")]
    device: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto"
    trust_remote_code: Annotated[bool, Parameter(negative="")] = False

    def load(self) -> Lens:
        """Return the model, loaded quietly.

        Raises:
            IdentilensError: If it cannot be loaded or is not supported.
        """
        quiet_transformers()
        with console.status(f"loading {self.model}"):
            return load(self.model, device=self.device, dtype=self.dtype, trust_remote_code=self.trust_remote_code)


@dataclass(frozen=True, kw_only=True)
class TextOptions(Settings):
    """The texts, or what the model takes in their place.

    Attributes:
        text: A text; give it once for each text.
        image: An image file, for models that see; give it once for each image.
        audio: A .wav file, for models that listen; give it once for each recording.
        file: .txt (one text a line), .jsonl, .csv, .tsv or .conllu; also .gz, .xz.
        column: Column with the texts; give two for sentence pairs.
        encoding: Encoding of the file.
        pairs: Sentence pairs: two --column, two --text, or a tab in each line of a .txt.
        limit: Take the first so many texts.
    """

    text: Annotated[Names, Parameter(alias="-t")] = ()
    image: Annotated[tuple[Path, ...], REPEATED] = ()
    audio: Annotated[tuple[Path, ...], REPEATED] = ()
    file: Annotated[Path | None, Parameter(alias="-f")] = None
    column: Annotated[Names, Parameter(alias="-c")] = ()
    encoding: str = "utf-8"
    pairs: Annotated[bool, Parameter(negative="")] = False
    limit: Annotated[int | None, Ge(1)] = None

    def load(self) -> list[Any]:
        """Return the texts, images or recordings.

        Raises:
            InputError: If they cannot be read, naming file and line.
        """
        if [bool(self.text), self.file is not None, bool(self.image), bool(self.audio)].count(True) != 1:
            raise InputError(
                "give either --text (once for each text), --file, --image or --audio, and one of them only."
            )
        if self.image or self.audio:
            read = [*map(read_image, self.image), *map(read_audio, self.audio)]
            return read[: self.limit]
        return read_texts(
            self.text if self.file is None else self.file,
            columns=self.column, encoding=self.encoding, pairs=self.pairs, limit=self.limit,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """Where a run goes.

    Attributes:
        out: Folder for the results.
        resume: Go on with an interrupted run.
        overwrite: Drop the run that the folder holds.
    """

    out: Annotated[Path, Parameter(alias="-o")]
    resume: Annotated[bool, Parameter(negative="")] = False
    overwrite: Annotated[bool, Parameter(negative="")] = False


INPUTS = {"lens": ("Model", ModelOptions), "texts": ("Texts", TextOptions)}
"""The options that each input of a study is made of: heading in the help, and the group."""


def quiet_transformers() -> None:
    """Keep transformers' own messages and bars off the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
