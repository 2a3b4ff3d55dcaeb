"""``identilens selfcheck``: is capture faithful on this model."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from cyclopts import Parameter
from rich.table import Table

from identilens.cli.options import ModelOptions, console
from identilens.errors import CheckFailedError
from identilens.runs.settings import Names, Settings
from identilens.studies.audit.selfcheck import selfcheck as run_selfcheck

_TEXTS = (
    "The keeper of the lighthouse wrote down every ship, although none had stopped there for years.",
    "Nobody came.",
)


@dataclass(frozen=True, kw_only=True)
class SelfcheckOptions(Settings):
    """The texts of the check.

    Attributes:
        text: A text. Repeat the option for each text. Default: two short texts.
        max_length: Cut longer texts to this many tokens.
    """

    text: Annotated[Names, Parameter(alias="-t")] = ()
    max_length: Annotated[int | None, Ge(1)] = None


def selfcheck(
    *,
    model: Annotated[ModelOptions, Parameter(name="*", group="Model")],
    on: Annotated[SelfcheckOptions, Parameter(name="*", group="Texts")] = SelfcheckOptions(),
) -> None:
    """Check that capture is faithful on a model, and print each check with its figure."""
    lens = model.load()
    inputs = list(on.text or _TEXTS) if lens.tokenizer is not None else [list(range(3, 14)), list(range(5, 9))]
    checks = run_selfcheck(lens, inputs, on.max_length)
    view = Table(title=f"selfcheck of {model.model}")
    for name in ("check", "figure", "limit", "result", "meaning"):
        view.add_column(name, justify="right" if name in ("figure", "limit") else "left")
    for check in checks:
        result = "[green]passed[/]" if check.passed else "[bold red]failed[/]"
        view.add_row(check.name, f"{check.figure:.2e}", f"{check.limit:.0e}", result, check.remark)
    console.print(view)
    if not all(check.passed for check in checks):
        raise CheckFailedError("capture is not faithful on this model: do not trust its numbers.")
