"""Groups of options that several commands share, and the objects that are made from them."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console

from identilens.cli.later import called
from identilens.errors import InputError, SettingError
from identilens.runs.lines import read_lines
from identilens.runs.settings import REPEATED, Names, Positive, Settings, Switch
from identilens.runs.terminal import plain

load = called("identilens.models.loading:load")
read_segment = called("identilens.claims:read_segment")
read_chats = called("identilens.models.chats:read_chats")
read_place = called("identilens.models.chats:read_place")
read_image = called("identilens.models.media:read_image")
read_texts = called("identilens.runs.texts:read_texts")
hub_dataset = called("identilens.runs.texts:hub_dataset")
console = Console()

LAB_MODELS = ("identilens.lab.encoder.modeling", "identilens.lab.dyck.modeling")
"""Modules that make the model types of the laboratory known to transformers."""

_JSON = ("[", "{", '"')
"""How JSON of conversations begins, and no name of a file."""


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Settings):
    """The model.

    Attributes:
        model: Hub id or local folder of a transformers model, or one of the bundled models (bundled, bundled-decoder).
        device: Device to run on: cpu, cuda, cuda:1, mps. Default: the best device that is available.
        device_map: Where parameters are kept, in place of a device: auto (the devices, then memory, then disk).
        dtype: Precision of the loaded model. Default: the precision of the checkpoint.
        revision: Branch, tag or commit on the hub.
        trust_remote_code: Run the Python code that the checkpoint contains.
    """

    model: Annotated[str, Parameter(alias="-m")]
    device: str | None = None
    device_map: str | None = None
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto"
    revision: str | None = None
    trust_remote_code: Switch = False

    def load(self) -> Any:
        """Return the model, loaded quietly.

        Raises:
            IdentilensError: If it cannot be loaded or is not supported.
        """
        quiet_transformers()
        with console.status(plain(f"loading {self.model}")):
            for module in LAB_MODELS:
                import_module(module)
            return load(**vars(self))


@dataclass(frozen=True, kw_only=True)
class TextOptions(Settings):
    """The texts or images that the model reads.

    Attributes:
        text: A text. Repeat the option for each text.
        image: An image file, for vision models. Repeat the option for each image.
        file: .txt (one text per line), .jsonl, .csv, .tsv, .conllu, also as .gz or .xz; .parquet, .arrow; - for stdin.
        dataset: Data set on the hub, or a folder that `datasets` can read. Its texts are streamed.
        subset: Subset of the data set, if it has several.
        split: Split of the data set.
        column: Column with the texts. Give two columns for sentence pairs.
        encoding: Encoding of the file.
        limit: Read only the first texts, up to this number.
    """

    text: Annotated[Names, Parameter(alias="-t")] = ()
    image: Annotated[tuple[Path, ...], REPEATED] = ()
    file: Annotated[Path | None, Parameter(alias="-f", allow_leading_hyphen=True)] = None
    dataset: str | None = None
    subset: str | None = None
    split: str = "train"
    column: Annotated[Names, Parameter(alias="-c")] = ()
    encoding: str = "utf-8"
    limit: Positive | None = None

    def load(self) -> Sequence[Any]:
        """Return the texts or images.

        Raises:
            InputError: If they cannot be read, naming file and line.
        """
        if sum(map(bool, (self.text, self.file, self.image, self.dataset))) != 1:
            raise InputError(
                "give exactly one of --text (repeat it for each text), --file, --dataset and --image."
            )
        if self.image:
            return [read_image(file) for file in self.image[: self.limit]]
        source: Any = self.text or self.file
        if self.dataset is not None:
            source = hub_dataset(self.dataset, self.split, self.subset)
        return read_texts(
            source,
            columns=self.column,
            encoding=self.encoding,
            limit=self.limit,
        )


@dataclass(frozen=True, kw_only=True)
class ChatOptions(Settings):
    """The conversations that the model answers.

    Attributes:
        prompt: A text that the model continues. Repeat the option for each text.
        chat: JSON, or a file of it: messages (role, content), an object with prompt or messages, and answer and
            segments if wanted, or a list of such conversations; - for the standard input.
        answer: The model's answer, in place of a generated one.
        segment: A further segment, as name=words, or as name=start:end by characters of what the model reads.
    """

    prompt: Names = ()
    chat: str | None = None
    answer: str | None = None
    segment: Names = ()

    def check(self) -> None:
        """Make the path of a file of conversations absolute."""
        if self.chat not in (None, "-") and not self.chat.startswith(_JSON):
            object.__setattr__(self, "chat", str(Path(self.chat).absolute()))

    def load(self) -> Sequence[Any]:
        """Return the conversations.

        Raises:
            InputError: If they cannot be read.
        """
        if bool(self.prompt) == (self.chat is not None):
            raise InputError("give exactly one of --prompt (repeat it for each text) and --chat.")
        chats = read_chats(self.prompt or self._content())
        if self.answer is not None:
            if len(chats) > 1:
                raise SettingError(
                    "answer", f"with a single conversation, not {len(chats)}", self.answer
                )
            chats = [replace(chats[0], answer=self.answer)]
        more = {name: read_place(words) for name, words in map(read_segment, self.segment)}
        return [replace(chat, segments={**chat.segments, **more}) for chat in chats]

    def _content(self) -> Any:
        content = str(self.chat)
        if not content.startswith(_JSON):
            content = "".join(line for _, line in read_lines(Path(content)))
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{self.chat:.400} cannot be read as JSON: {error}.") from error


@dataclass(frozen=True, kw_only=True)
class RunOptions(Settings):
    """Folder of a run, and how it is used.

    Attributes:
        config: TOML file with options by name, at its top or under the command's name. Typed options have priority.
        out: Folder for the tables and the report, from which a run is resumed. Default: a
            question is only answered here; a reproduction takes a folder of its own name.
        resume: Continue an interrupted run.
        overwrite: Delete the previous run in the folder. Only the files that its manifest lists are deleted.
    """

    config: Path | None = None
    out: Annotated[str | None, Parameter(alias="-o")] = None
    resume: Switch = False
    overwrite: Switch = False


@dataclass(frozen=True, kw_only=True)
class PrintOptions(Settings):
    """Output of a run on the terminal.

    Attributes:
        json: Print only JSON: the finding, its named numbers, every table, a citation and the path of the report.
        quiet: Print nothing.
    """

    json: Switch = False
    quiet: Annotated[bool, Parameter(negative="", alias="-q")] = False


@dataclass(frozen=True, kw_only=True)
class RayOptions(Settings):
    """Who computes the parts of a run.

    Attributes:
        ray: Compute the parts on a Ray cluster, one for each core: local for this machine, or the address of a running
            cluster. Default: this process computes them.
    """

    ray: str | None = None


INPUTS = {
    "lens": ("Model", ModelOptions),
    "texts": ("Texts", TextOptions),
    "chats": ("Conversations", ChatOptions),
}
"""For each input of a study: the heading of its options in the help, and the group of options."""


def load_inputs(groups: dict[str, Any]) -> dict[str, Any]:
    """Return inputs from their groups of options.

    Texts are read first, so that errors in them appear before a model is loaded.
    """
    return {name: groups[name].load() for name in reversed(groups)}


def quiet_transformers() -> None:
    """Turn off the log messages and progress bars of transformers."""
    from transformers.utils import logging

    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
