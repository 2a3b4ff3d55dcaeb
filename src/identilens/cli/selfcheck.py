"""``identilens selfcheck``: is capture faithful on this model; and which model types are supported."""

from collections.abc import Sequence
from importlib.resources import files
from typing import Annotated, Any

from cyclopts import Parameter

from identilens.cli.later import called
from identilens.cli.options import ModelOptions, TextOptions
from identilens.errors import CheckFailedError, InputError, JoinedTextsError
from identilens.runs.terminal import say

frame_of = called("polars:DataFrame")
print_table = called("identilens.runs.tables:print_table")

_TEXTS = (
    "The keeper of the lighthouse wrote down every ship, although none had stopped there for years.",
    "Nobody came.",
)


_LIMIT = 8
"""Largest number of texts without --limit."""


def selfcheck(
    *,
    model: Annotated[ModelOptions | None, Parameter(name="*", group="Model")] = None,
    on: Annotated[TextOptions | None, Parameter(name="*", group="Texts")] = None,
    types: Annotated[bool, Parameter(name="--list", negative="")] = False,
) -> None:
    """Check that capture is faithful on a model, and print each check with its figure.

    These are the checks of the first batch of every run. At most the first 8 texts are used, or as many as --limit
    says, in one batch; of a model that takes one at a time, the first. The default are two short texts.

    Args:
        model: The model.
        on: The texts.
        types: Print the model types of transformers of which a tiny model was captured with proof, and check nothing.
    """
    if types:
        say(", ".join(served_types()))
        return
    if model is None:
        raise InputError("give --model MODEL, or --list for the model types that are supported.")
    lens = model.load()
    if on is not None:
        inputs = list(on.load()[: on.limit or _LIMIT])
    elif lens.tokenizer is not None:
        inputs = list(_TEXTS)
    else:
        inputs = [list(range(3, 14)), list(range(5, 9))]
    checks = proof(lens, inputs)
    rows = [{**vars(check), "passed": check.passed} for check in checks]
    print_table(f"selfcheck of {model.model}", frame_of(rows))
    if not all(check.passed for check in checks):
        raise CheckFailedError("capture is not faithful on this model: do not trust its numbers.")


def served_types() -> list[str]:
    """Return the model types of which a tiny model was captured with proof; ``make families`` tries them."""
    return files("identilens").joinpath("models", "served.txt").read_text(encoding="utf-8").split()


def proof(lens: Any, texts: Any) -> Sequence[Any]:
    """Return the checks of capture on some texts; on the first where the model takes one at a time."""
    items = lens.read(texts)
    try:
        return lens.prove(items)
    except JoinedTextsError:
        return lens.prove(items[:1])
