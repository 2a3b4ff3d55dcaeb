"""Table 1 of Bhardwaj et al. 2021: test accuracy of Con and Add encoders by key size."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from identilens.lab.encoder.settings import TaskName
from identilens.lab.encoder.sweep.study import SweepSettings, sweep
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.settings import LIST


@dataclass(frozen=True, kw_only=True)
class Table1Settings(SweepSettings):
    """The cells of Table 1 to reproduce.

    Attributes:
        tasks: Tasks, separated by commas.
    """

    tasks: Annotated[tuple[TaskName, ...], LIST] = ("trec",)


def table1(settings: Table1Settings, out: Path, **run: Any) -> Reproduction:
    """Test accuracy of Con and Add encoders by key size, on ten tasks; runs are saved to ``sweep`` in the folder."""
    result = sweep(settings=settings, out=out / "sweep", **run)
    used: dict[str, Any] = {
        "tasks": list(settings.tasks), "d_k": list(settings.d_k), "seeds": list(settings.seeds),
        "epochs": settings.epochs, "batch size": settings.batch_size, "learning rate": settings.learning_rate,
        "precision": settings.precision, "longest text": settings.max_length, "rows": settings.limit or "all",
        "block": settings.block, "initial std": settings.initial_std, "logit scale": settings.logit_scale,
    }  # fmt: skip
    counts = result.table.group_by("task", maintain_order=True).first()
    rows = "\n".join(
        f"- {row['task']}: {row['train_rows']:,} training, {row['validation_rows']:,} validation and "
        f"{row['test_rows']:,} test rows, {row['vocabulary']:,} words"
        for row in counts.iter_rows(named=True)
    )
    findings = f"{result.markdown()}\n\n{rows}\n\n{result.summary().text}"
    return Reproduction(
        "bhardwaj2021-table1", "Bhardwaj et al. 2021, Table 1", used,
        {"runs": result.table, "table1": result.table_one()}, findings, result.charts(),
    )  # fmt: skip


RECIPE = Recipe(Table1Settings, table1, "runs", shared=True)
