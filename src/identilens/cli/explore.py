"""``identilens explore``: a local web page on one or more models."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from identilens.cli.options import ModelOptions, console
from identilens.errors import InputError
from identilens.runs.texts import read_texts

_MOST_TEXTS = 100


def explore(
    *,
    model: Annotated[list[str], Parameter(alias="-m", negative="")],
    text: Annotated[tuple[str, ...], Parameter(alias="-t", negative="")] = (),
    file: Annotated[Path | None, Parameter(alias="-f")] = None,
    device: str | None = None,
    dtype: Literal["auto", "float32", "float16", "bfloat16", "float64"] = "auto",
    port: int = 8765,
    runs: Path | None = None,
) -> None:
    """Open a local web page on models: type a text, look at its maps, prove intervals, put alternatives back.

    It answers on this machine alone, to pages opened with the address that is printed. Ctrl-C ends it.

    Args:
        model: Hub id or local folder of a transformers model; give it once for each model.
        text: A text to begin with; give it once for each text.
        file: A file of texts to begin with, as for other commands.
        device: Where to run; the best there is by default.
        dtype: Precision to load the models in.
        port: Port of the page.
        runs: Folder whose run folders the page may open, and save new ones into.
    """
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise InputError("the explorer needs two packages more. Install them with: pip install 'identilens[explorer]'")
    if len(set(model)) < len(model):
        raise InputError("give each --model once.")
    texts = [*text, *(str(one) for one in (read_texts(file) if file else ()))][:_MOST_TEXTS]
    lenses = {name: ModelOptions(model=name, device=device, dtype=dtype).load() for name in model}
    load = {name: value for name, value in {"device": device, "dtype": dtype}.items() if value not in (None, "auto")}
    import_module("identilens.explorer.server").serve(
        lenses, texts, port=port, runs=runs, load=load,
        announce=lambda address: console.print(f"explorer: {address}", soft_wrap=True, highlight=False),
    )  # fmt: skip
