"""What the commands share: options, loading a model, progress, messages."""

import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from identilens.errors import InputError
from identilens.models import Lens, load

console = Console()
errors = Console(stderr=True)

ModelOption = Annotated[str, typer.Option("--model", "-m", help="Hub id or local folder of a transformers model.")]
TextOption = Annotated[list[str] | None, typer.Option("--text", "-t", help="A text; give it once for each text.")]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help=".txt (one text a line), .jsonl, .csv or .tsv; also .gz, .xz.")
]
ColumnOption = Annotated[
    list[str] | None, typer.Option("--column", "-c", help="Column with the texts; give two for sentence pairs.")
]
EncodingOption = Annotated[str, typer.Option("--encoding", help="Encoding of the file.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
MaxLengthOption = Annotated[int | None, typer.Option("--max-length", help="Cut longer texts to this many tokens.")]
DeviceOption = Annotated[str | None, typer.Option("--device", help="cpu, cuda, cuda:1, mps; the best by default.")]
DtypeOption = Annotated[
    Literal["auto", "float32", "float16", "bfloat16", "float64"],
    typer.Option("--dtype", help="Precision to load the model in; the checkpoint's own by default."),
]
LayerOption = Annotated[
    list[int] | None, typer.Option("--layer", "-l", help="Layer, from 0; give it again for more; all by default.")
]
HeadOption = Annotated[
    list[int] | None, typer.Option("--head", help="Head, from 0; give it again for more; all by default.")
]
KindOption = Annotated[
    Literal["encoder", "decoder", "cross"] | None,
    typer.Option("--kind", help="Kind of attention; needed where a model has several and one is meant."),
]
PairsOption = Annotated[
    bool, typer.Option("--pairs", help="Sentence pairs: two --column, two --text, or a tab in each line of a .txt.")
]
FirstTextsOption = Annotated[int | None, typer.Option("--limit", min=1, help="Take the first so many texts.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run.")]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Drop the run that the folder holds.")]
RemoteCodeOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the checkpoint.")
]


def quiet_transformers() -> None:
    """Keep transformers' own messages and bars off the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()


def load_lens(model: str, device: str | None, dtype: str, trust_remote_code: bool = False) -> Lens:
    """Load a model for a command, quietly.

    Raises:
        IdentilensError: If it cannot be loaded or is not supported.
    """
    quiet_transformers()
    with console.status(f"loading {model}"):
        try:
            return load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)  # pyright: ignore[reportArgumentType] the option's choices
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"cannot use device {device!r}: {str(error).splitlines()[0]}") from error


@contextmanager
def progress(unit: str) -> Iterator[Callable[..., None]]:
    """Yield a function (done, total, note="") that draws a bar with rate, time left and a note behind it."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=errors, transient=False) as bar:
        task = bar.add_task(unit, total=None, rate="", note="")

        def update(done: int, total: int | None, note: str = "") -> None:
            speed = bar.tasks[0].speed
            rate = "" if not speed else f"{speed:.1f}/s" if speed >= 1 else f"{1 / speed:.1f} s each"
            bar.update(task, completed=done, total=total, rate=rate, note=note)

        yield update


def with_note(update: Callable[..., None]) -> tuple[Callable[[int, int], None], Callable[[str], None]]:
    """Return one function that moves the bar, and one that changes the note behind it."""
    place: list[int | None] = [0, None]

    def advance(done: int, total: int) -> None:
        place[:] = done, total
        update(done, total)

    return advance, lambda note: update(*place, note)


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Return layer numbers from "0,3,5-8"; None for None.

    Raises:
        InputError: For anything else.
    """
    return None if text is None else parse_numbers("--layers", text)


def parse_numbers(option: str, text: str) -> tuple[int, ...]:
    """Return numbers from "0,3,5-8", each once.

    Raises:
        InputError: For anything else.
    """
    numbers: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
        if match is None:
            raise InputError(f"{option} takes numbers and ranges such as 0,3,5-8; got {text!r}.")
        first, last = int(match[1]), int(match[2] or match[1])
        numbers.extend(range(first, last + 1))
    return tuple(dict.fromkeys(numbers))


def parse_bytes(text: str) -> int:
    """Return a number of bytes from "268435456", "256MiB" or "2 GB".

    Raises:
        InputError: For anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMG]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(f"--memory-budget takes bytes, or a size such as 512MiB or 2GB; got {text!r}.")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMG".index(match[2].upper() or " "))
