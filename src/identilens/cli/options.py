"""Options that many commands share, each group once, and what is made of them."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge
from cyclopts import Parameter
from rich.console import Console

from identilens.errors import InputError, SettingError
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.models.media import read_audio, read_image
from identilens.runs.columns import hub_dataset
from identilens.runs.compressed import MAX_TEXT_BYTES
from identilens.runs.engines.cluster import Ray
from identilens.runs.engines.engine import Engine
from identilens.runs.engines.local import Local
from identilens.runs.settings import REPEATED, Names, Settings, Size
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
        file: .txt (one text a line), .jsonl, .csv, .tsv, .conllu; also .gz, .xz; .parquet; - for the standard input.
        dataset: Data set on the hub, or a folder that `datasets` reads; its texts are streamed.
        subset: Of the data set, where it has several.
        split: Of the data set.
        column: Column with the texts; give two for sentence pairs.
        encoding: Encoding of the file.
        pairs: Sentence pairs: two --column, two --text, or a tab in each line of a .txt.
        limit: Take the first so many texts.
        max_text_bytes: Read so much of the file at most, decompressed, such as 512MiB; 4 GiB by default.
    """

    text: Annotated[Names, Parameter(alias="-t")] = ()
    image: Annotated[tuple[Path, ...], REPEATED] = ()
    audio: Annotated[tuple[Path, ...], REPEATED] = ()
    file: Annotated[Path | None, Parameter(alias="-f", allow_leading_hyphen=True)] = None
    dataset: str | None = None
    subset: str | None = None
    split: str = "train"
    column: Annotated[Names, Parameter(alias="-c")] = ()
    encoding: str = "utf-8"
    pairs: Annotated[bool, Parameter(negative="")] = False
    limit: Annotated[int | None, Ge(1)] = None
    max_text_bytes: Annotated[Size, Ge(1)] = MAX_TEXT_BYTES

    def load(self, max_length: int | None = None) -> Sequence[Any]:
        """Return the texts, images or recordings; of texts that will be cut to so many tokens, what is needed.

        Raises:
            InputError: If they cannot be read, naming file and line.
        """
        given = (self.text, self.file, self.image, self.audio, self.dataset)
        if [bool(one) for one in given].count(True) != 1:
            raise InputError(
                "give either --text (once for each text), --file, --dataset, --image or --audio, and one of them only."
            )
        if self.image or self.audio:
            read = [*map(read_image, self.image), *map(read_audio, self.audio)]
            return read[: self.limit]
        source: Any = self.text or self.file
        with console.status("reading texts") as status:
            if self.dataset is not None:
                source = hub_dataset(self.dataset, self.split, self.subset)
            return read_texts(
                source, columns=self.column, encoding=self.encoding, pairs=self.pairs, limit=self.limit,
                max_length=max_length, max_text_bytes=self.max_text_bytes,
                told=lambda count: status.update(f"reading texts: {count:,}"),
            )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """Where a run goes.

    Attributes:
        out: Folder for the results, or a URL such as s3://bucket/run.
        resume: Go on with an interrupted run.
        overwrite: Drop the run that the folder holds: the files that its manifest lists, and no other.
        allow_version_change: Go on with a run that other versions of the libraries have begun.
    """

    out: Annotated[str, Parameter(alias="-o")]
    resume: Annotated[bool, Parameter(negative="")] = False
    overwrite: Annotated[bool, Parameter(negative="")] = False
    allow_version_change: Annotated[bool, Parameter(negative="")] = False

    @property
    def choices(self) -> dict[str, bool]:
        """What a run takes of it, but for its folder."""
        return {"resume": self.resume, "overwrite": self.overwrite, "allow_version_change": self.allow_version_change}


@dataclass(frozen=True, kw_only=True)
class PrintOptions(Settings):
    """What a run prints.

    Attributes:
        json: The finding, its numbers and the report's path as JSON, and nothing else.
        quiet: Nothing.
    """

    json: Annotated[bool, Parameter(negative="")] = False
    quiet: Annotated[bool, Parameter(negative="", alias="-q")] = False


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Settings):
    """Who computes the parts of a run.

    Attributes:
        engine: Processes of this machine (local), or actors of a Ray cluster; this process alone by default.
        workers: How many work at the same time; 2 by default.
        gpus_per_worker: GPUs of each Ray actor, such as 1 or 0.5.
        address: Of a running Ray cluster, auto for the one of this machine; a new one on this machine by default.
    """

    engine: Literal["local", "ray"] | None = None
    workers: Annotated[int | None, Ge(1)] = None
    gpus_per_worker: Annotated[float | None, Ge(0)] = None
    address: str | None = None

    def check(self) -> None:
        """Check that nothing is said of workers where there are none."""
        takes = {None: (), "local": ("workers",), "ray": ("workers", "gpus_per_worker", "address")}[self.engine]
        for name in ("workers", "gpus_per_worker", "address"):
            if getattr(self, name) is not None and name not in takes:
                what = f"with engine {self.engine}" if self.engine else "without an engine"
                raise SettingError(name, f"to be left out {what}", getattr(self, name))

    def made(self) -> Engine | None:
        """Return the engine, if one is asked for."""
        given = {name: getattr(self, name) for name in ("workers", "gpus_per_worker", "address")}
        given = {name: value for name, value in given.items() if value is not None}
        return None if self.engine is None else {"local": Local, "ray": Ray}[self.engine](**given)


INPUTS = {"lens": ("Model", ModelOptions), "texts": ("Texts", TextOptions)}
"""The options that each input of a study is made of: heading in the help, and the group."""


def quiet_transformers() -> None:
    """Keep transformers' own messages and bars off the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
