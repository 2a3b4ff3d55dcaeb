"""``identilens explore``: a local web page on one or more models."""

import sys
import webbrowser
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from cyclopts.types import Port

from identilens.cli.later import called
from identilens.cli.options import ModelOptions
from identilens.demo.examples import STORY, examples
from identilens.errors import InputError
from identilens.runs.terminal import say

read_texts = called("identilens.runs.texts:read_texts")
_MOST_TEXTS = 100
_LOCAL = "127.0.0.1"


def explore(
    *,
    model: Annotated[tuple[str, ...], Parameter(alias="-m", negative="")] = ("bundled-decoder",),
    text: Annotated[tuple[str, ...], Parameter(alias="-t", negative="")] = (),
    file: Annotated[Path | None, Parameter(alias="-f")] = None,
    device: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto",
    host: str = _LOCAL,
    port: Port = 8765,
    browser: bool = True,
) -> None:
    """Open a local web page on models: look at maps, prove ranges, exchange weights, take out what matters.

    Only this machine can open the page, and only with the address that is printed; `--host 0.0.0.0` opens it to all of
    the network who have that address. Ctrl-C ends the program.

    Args:
        model: Hub id or local folder of a transformers model, or a bundled one. Repeat the option for each model.
        text: A text to start with. Repeat the option for each text. Default: examples.
        file: A file of texts to start with, in the formats of the other commands.
        device: Device to run on. Default: the best device that is available.
        dtype: Precision of the loaded models.
        host: Address of this machine under which the page opens; 0.0.0.0 for all of them, so that others of the network
            can open it, for a classroom.
        port: Port of the page; 0 for any that is free.
        browser: Open the page in the browser of this machine, where the command runs in a terminal.
    """
    try:
        server = import_module("identilens.explorer.server")
    except ModuleNotFoundError as error:
        raise InputError(
            "the explorer needs two more packages. Install them with: pip install 'identilens[explorer]'"
        ) from error
    opened = server.opened_port(port, host)
    texts = [*text, *(read_texts(file) if file else ())][:_MOST_TEXTS]
    load = {"device": device} if device else {}
    load |= {"dtype": dtype} if dtype != "auto" else {}
    lenses = {name: ModelOptions(model=name, device=device, dtype=dtype).load() for name in model}

    def announce(address: str) -> None:
        say(f"explorer: {address}")
        if host != _LOCAL:
            say("warning: all who have this address can use the models here; nothing is encrypted.")
        if browser and sys.stdout.isatty():
            webbrowser.open(address)

    # The story is of one model, and too short for most heads. Two models stand beside each other on one text.
    brought = [*[STORY] * ("bundled-decoder" in model), *examples()]
    server.serve(
        lenses,
        texts or brought[: None if len(lenses) == 1 else 1],
        opened=opened,
        load=load,
        announce=announce,
    )
