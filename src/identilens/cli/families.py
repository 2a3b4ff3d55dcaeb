"""``identilens families``: which model types of transformers are supported, and why others are not."""

from collections import Counter
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from identilens.cli.options import console, quiet_transformers
from identilens.errors import InputError
from identilens.families.table import MEANINGS, known, read_table
from identilens.families.tiny import model_types
from identilens.families.trial import Trial, trial
from identilens.runs.terminal import say


def families(
    *,
    family: Annotated[str | None, Parameter(alias="-f")] = None,
    try_it: Annotated[bool, Parameter(name="--try", negative="")] = False,
) -> None:
    """List which model types of transformers can be audited and how, and why the others cannot.

    Args:
        family: A model type, as model_type in a config.json. Default: counts of all types.
        try_it: Try a tiny random model of the type with the installed transformers. Default: read the stored table.
    """
    table = read_table()
    if family is None:
        if try_it:
            raise InputError("expected --family beside --try: name the model type to try.")
        _all(table)
        return
    quiet_transformers()
    name = known(family, model_types() if try_it else table)
    _one(trial(name) if try_it else table[name])


def _all(table: dict[str, Trial]) -> None:
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
            console.print(Text(f"{outcome}: ", "bold") + Text(", ".join(names)), highlight=False)
    console.print("For one model type: identilens families --family NAME", highlight=False)


def _one(trial: Trial) -> None:
    words = [f"{trial.family}: {trial.outcome}, {MEANINGS[trial.outcome]}."]
    if trial.outcome == "served":
        words.append(f"{trial.model} on {trial.inputs}; {trial.layers} attention layers of a tiny model, {trial.way}.")
        if trial.difference is not None:
            words.append(f"Weights differ from its own output_attentions by at most {trial.difference:.1e}.")
    elif trial.outcome in ("refused", "no attention"):
        words.append("What to do: use a model of a served type. The command identilens families lists them.")
    for line in (words[0], trial.reason, *words[1:]):
        if line:
            say(line)
