"""``identilens selfcheck``: is capture faithful on this model."""

import typer
from rich.table import Table

from identilens.cli.common import (
    DeviceOption,
    DtypeOption,
    MaxLengthOption,
    ModelOption,
    RemoteCodeOption,
    TextOption,
    console,
    load_lens,
)
from identilens.studies.audit.selfcheck import selfcheck as run_selfcheck

_TEXTS = (
    "The keeper of the lighthouse wrote down every ship, although none had stopped there for years.",
    "Nobody came.",
)


def selfcheck(
    model: ModelOption,
    text: TextOption = None,
    max_length: MaxLengthOption = None,
    device: DeviceOption = None,
    dtype: DtypeOption = "auto",
    trust_remote_code: RemoteCodeOption = False,
) -> None:
    """Check that capture is faithful on a model, and print each check with its figure."""
    lens = load_lens(model, device, dtype, trust_remote_code)
    inputs = text or (list(_TEXTS) if lens.tokenizer is not None else [list(range(3, 14)), list(range(5, 9))])
    checks = run_selfcheck(lens, inputs, max_length)
    view = Table(title=f"selfcheck of {model}")
    for name in ("check", "figure", "limit", "result", "meaning"):
        view.add_column(name, justify="right" if name in ("figure", "limit") else "left")
    for check in checks:
        result = "[green]passed[/]" if check.passed else "[bold red]failed[/]"
        view.add_row(check.name, f"{check.figure:.2e}", f"{check.limit:.0e}", result, check.remark)
    console.print(view)
    if not all(check.passed for check in checks):
        console.print("This model's numbers are not to be trusted: capture is not faithful on it.")
        raise typer.Exit(1)
