"""structure2025, Figure 1: cross attention of a model that reverses a sequence of 20 tokens."""

import polars as pl

from identilens.report.reversal_figures import attention_sheet, best_head
from identilens.reproduce.record import Reproduction
from identilens.reproduce.structure2025_reversal import Progress, accuracy_table, recorded, studies
from identilens.results.stored import markdown_table
from identilens.studies.reversal.task import antidiagonal_match
from identilens.studies.reversal.training import ReversalSettings

NAME = "structure2025-figure1"


def structure2025_figure1(settings: ReversalSettings, progress: Progress | None = None) -> Reproduction:
    """Return Figure 1: both models trained, and their attention on the first test input."""
    found = studies(settings, progress)
    accuracy = accuracy_table(found)
    rows = []
    for study in found:
        for head in range(len(study.weights)):
            one = antidiagonal_match(study.weights[head, 0])
            nullity = float(study.nullity[head])
            rows.append((study.model, head, one.mass, one.score, one.shift, nullity))
    schema = ["model", "head", "mass", "score", "shift", "nullity"]
    match = pl.DataFrame(rows, schema=schema, orient="row")
    cells = pl.concat(
        [
            pl.DataFrame(
                [
                    (study.model, best_head(study), row, column, float(study.weights[best_head(study), 0, row, column]))
                    for row in range(settings.length)
                    for column in range(settings.length)
                ],
                schema=["model", "head", "output", "input", "weight"],
                orient="row",
            )
            for study in found
        ]
    )
    findings = (
        "Accuracy on the test set (tokens, given the right ones before), beside the draft's:\n\n"
        f"{markdown_table(accuracy)}\n\nThe first test input's attention, against the antidiagonal (mass: mean weight "
        "of a row on it; score: cosine; shift: offset of the antidiagonal with most mass; nullity: n − rank(T), mean "
        f"over inputs):\n\n{markdown_table(match)}\n"
    )
    return Reproduction(
        NAME, "structure2025, Figure 1", recorded(settings),
        {"accuracy": accuracy, "match": match, "attention": cells},
        findings, {"attention": lambda: attention_sheet(found)}, settings.seed,
    )  # fmt: skip
