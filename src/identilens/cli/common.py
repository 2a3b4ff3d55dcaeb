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
RemoteCodeOption = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run Python code that comes with the checkpoint.")
]


def load_lens(model: str, device: str | None, dtype: str, trust_remote_code: bool = False) -> Lens:
    """Load a model for a command, quietly.

    Raises:
        IdentilensError: If it cannot be loaded or is not supported.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    with console.status(f"loading {model}"):
        try:
            return load(model, device=device, dtype=dtype, trust_remote_code=trust_remote_code)  # pyright: ignore[reportArgumentType] the option's choices
        except (RuntimeError, AssertionError) as error:
            raise InputError(f"cannot use device {device!r}: {str(error).splitlines()[0]}") from error


@contextmanager
def progress(unit: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function (done, total) that draws a bar with rate and time left."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=errors, transient=False) as bar:
        task = bar.add_task(unit, total=None, rate="")

        def update(done: int, total: int) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f}/s" if speed else ""
            bar.update(task, completed=done, total=total, rate=rate)

        yield update


def parse_layers(text: str | None) -> tuple[int, ...] | None:
    """Return layer numbers from "0,3,5-8".

    Raises:
        InputError: For anything else.
    """
    if text is None:
        return None
    layers: list[int] = []
    for piece in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", piece)
        if match is None:
            raise InputError(f"--layers takes numbers and ranges such as 0,3,5-8; got {text!r}.")
        first, last = int(match[1]), int(match[2] or match[1])
        layers.extend(range(first, last + 1))
    return tuple(dict.fromkeys(layers))
