"""``identilens selfcheck``: is capture faithful on this model."""

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table

from identilens.cli.options import ModelOptions, TextOptions, console
from identilens.errors import CheckFailedError
from identilens.runs.settings import Positive
from identilens.runs.terminal import plain
from identilens.studies.audit.selfcheck import selfcheck as run_selfcheck

_TEXTS = (
    "The keeper of the lighthouse wrote down every ship, although none had stopped there for years.",
    "Nobody came.",
)


_LIMIT = 8
"""Largest number of texts without --limit."""


@dataclass(frozen=True, kw_only=True)
class SelfcheckOptions(TextOptions):
    """The inputs of the check.

    Attributes:
        max_length: Cut longer texts to this many tokens.
    """

    max_length: Positive | None = None


def selfcheck(
    *,
    model: Annotated[ModelOptions, Parameter(name="*", group="Model")],
    on: Annotated[SelfcheckOptions, Parameter(name="*", group="Texts")] = SelfcheckOptions(),
) -> None:
    """Check that capture is faithful on a model, and print each check with its figure.

    At most the first 8 texts are used, or as many as --limit says, in one batch. The default are two short texts.
    """
    lens = model.load()
    if on == SelfcheckOptions():
        inputs = (
            list(_TEXTS) if lens.tokenizer is not None else [list(range(3, 14)), list(range(5, 9))]
        )
    else:
        inputs = list(on.load(on.max_length)[: on.limit or _LIMIT])
    checks = run_selfcheck(lens, inputs, on.max_length)
    view = Table(title=plain(f"selfcheck of {model.model}"))
    for name in ("check", "figure", "limit", "result", "meaning"):
        view.add_column(name, justify="right" if name in ("figure", "limit") else "left")
    for check in checks:
        result = "[green]passed[/]" if check.passed else "[bold red]failed[/]"
        view.add_row(check.name, f"{check.figure:.2e}", f"{check.limit:.0e}", result, check.remark)
    console.print(view)
    if not all(check.passed for check in checks):
        raise CheckFailedError("capture is not faithful on this model: do not trust its numbers.")
