"""Footnote 4 of Wen et al. 2023: models trained with uniform attention, their queries and keys kept at zero."""

from dataclasses import replace
from pathlib import Path

from identilens.lab.dyck.settings import DyckSetting, DyckTraining
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import FewSeeds, Run, behind, deep, gpt, recipe, reproduction, run_settings, shallow


def uniform(training: DyckTraining) -> DyckTraining:
    """Return the same training without queries and keys."""
    return replace(training, attention="uniform")


SETTINGS = [
    DyckSetting("2 layers, no positions", gpt(), uniform(deep())),
    DyckSetting("2 layers, linear positions", gpt(positions="linear"), uniform(deep())),
    DyckSetting("Eq. 19 (one-hot)", behind("one-hot"), uniform(shallow())),
]


def footnote4(out: Path, run: Run) -> Reproduction:
    """Return the accuracy of models that are trained with uniform attention."""
    result = run_settings(out, SETTINGS, run)
    findings = (
        "W_Q and W_K are 0 and not trained, so that every position attends equally to all positions up to its own. The "
        "paper says that such models fit the distribution almost perfectly; its number is missing in the available "
        "text."
    )
    return reproduction("wen2023-footnote4", "Wen et al. 2023, footnote 4", result, SETTINGS, run, findings)


RECIPE = recipe(footnote4, FewSeeds)
