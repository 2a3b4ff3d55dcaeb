"""Table 1 of Bhardwaj et al. 2021: test accuracy of Con and Add encoders by key size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from identilens.encoder.published import D_K
from identilens.encoder.training import Progress, TrainingSettings
from identilens.report.encoder_figures import accuracy_sheet
from identilens.reproduce.record import Reproduction
from identilens.studies.sweep.study import sweep


def table1(
    out: Path,
    *,
    tasks: Sequence[str] = ("trec",),
    data: Path | None = None,
    d_k: Sequence[int] = D_K,
    settings: TrainingSettings | None = None,
    seeds: Sequence[int] = (0,),
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Reproduction:
    """Return measured beside published accuracies; the runs go to ``out/sweep``, which can be resumed."""
    shared = settings or TrainingSettings()
    found = sweep(
        tasks, out / "sweep", d_k=d_k, seeds=seeds, data=data, settings=shared, resume=resume, overwrite=overwrite,
        progress=progress,
    )  # fmt: skip
    used: dict[str, Any] = {
        "tasks": list(tasks), "d_k": list(d_k), "seeds": list(seeds), "epochs": shared.epochs,
        "batch size": shared.batch_size, "learning rate": shared.learning_rate, "precision": shared.precision,
        "longest text": shared.max_length, "rows": shared.limit or "all",
    }  # fmt: skip
    counts = found.table.group_by("task", maintain_order=True).first()
    rows = "\n".join(
        f"- {row['task']}: {row['train_rows']:,} training, {row['validation_rows']:,} validation and "
        f"{row['test_rows']:,} test rows, {row['vocabulary']:,} words"
        for row in counts.iter_rows(named=True)
    )
    findings = f"{found.markdown()}\n\n{rows}\n\n{found.summary()}"
    return Reproduction(
        "bhardwaj2021-table1", "Bhardwaj et al. 2021, Table 1", used,
        {"runs": found.table, "table1": found.table_one()}, findings, {"accuracy": lambda: accuracy_sheet(found)},
    )  # fmt: skip
