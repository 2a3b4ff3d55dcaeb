"""``identilens families``: which model types of transformers are supported, and why others are not."""

from collections import Counter
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from identilens.cli.options import console
from identilens.families.table import MEANINGS, known, read_table
from identilens.runs.terminal import say


def families(*, family: Annotated[str | None, Parameter(alias="-f")] = None) -> None:
    """List which model types of transformers can be audited and how, and why the others cannot.

    Args:
        family: A model type, as model_type in a config.json. Default: counts of all types.
    """
    table = read_table()
    if family is None:
        counts = Counter(one.outcome for one in table.values())
        view = Table(title=f"{len(table)} model types of transformers")
        for column in ("outcome", "types", "meaning"):
            view.add_column(column, justify="right" if column == "types" else "left")
        for outcome, meaning in MEANINGS.items():
            view.add_row(outcome, str(counts[outcome]), meaning)
        console.print(view)
        for outcome in MEANINGS:
            names = [name for name, entry in table.items() if entry.outcome == outcome]
            if names:
                console.print(Text(f"{outcome}: ", "bold") + Text(", ".join(names)))
        console.print("For one model type: identilens families --family NAME", highlight=False)
    else:
        trial = table[known(family, table)]
        words = [f"{trial.family}: {trial.outcome}, {MEANINGS[trial.outcome]}."]
        if trial.outcome == "served":
            words.append(
                f"{trial.model} on {trial.inputs}; {trial.layers} attention layers of a tiny model, {trial.way}."
            )
            if trial.difference is not None:
                words.append(
                    f"Weights differ from its own output_attentions by at most {trial.difference:.1e}."
                )
        elif trial.outcome in ("refused", "no attention"):
            words.append(
                "What to do: use a model of a served type. The command identilens families lists them."
            )
        for line in (words[0], trial.reason, *words[1:]):
            if line:
                say(line)
