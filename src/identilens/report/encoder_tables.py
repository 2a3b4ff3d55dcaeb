"""What a trained encoder and a sweep over encoders show: findings, tables and charts."""

from pathlib import Path

import polars as pl

from identilens.report.table_report import Chart, TableView
from identilens.results.encoder_run import EncoderRun
from identilens.results.encoder_sweep import NAMES, EncoderSweep


def training_view(folder: Path) -> TableView:
    """Return what a training run in a folder shows.

    Raises:
        OutputFolderError: If the folder holds no finished run of this kind.
    """
    run = EncoderRun.load(folder)
    losses = {
        name: run.table.select("epoch", column).rows()
        for name, column in (("training", "train_loss"), ("validation", "validation_loss"))
    }
    accuracy = {"validation": run.table.select("epoch", "validation_accuracy").rows()}
    charts = [
        Chart("accuracy", "Validation accuracy by epoch", "epoch", "accuracy", accuracy),
        Chart("loss", "Cross-entropy by epoch", "epoch", "cross-entropy", losses),
    ]
    numbers = [(f"{run.metrics['test_accuracy']:.3f}", "test accuracy"), (str(run.metrics["best_epoch"]), "best epoch")]
    return TableView(
        "Trained encoder", run.provenance["model"]["name"], run.summary().splitlines(), run.table, charts,
        run.provenance, numbers,
    )  # fmt: skip


def sweep_view(folder: Path) -> TableView:
    """Return what a sweep in a folder shows: accuracies by key size, beside the published ones.

    Raises:
        OutputFolderError: If the folder holds no finished sweep.
    """
    sweep = EncoderSweep.load(folder)
    cells = sweep.cells()
    charts = []
    for (task,), rows in cells.group_by("task", maintain_order=True):
        lines = {}
        for (heads,), own in rows.group_by("heads", maintain_order=True):
            name = NAMES[str(heads)]
            lines[f"{name}, measured"] = own.select("d_k", "test_accuracy").rows()
            if own["published"].is_not_null().any():
                lines[f"{name}, published"] = own.drop_nulls("published").select("d_k", "published").rows()
        charts.append(Chart(f"accuracy_{task}", f"{task}: test accuracy by d_k", "d_k", "accuracy", lines, log_x=True))
    table = cells.with_columns(pl.col("heads").cast(pl.String).replace(NAMES))
    tasks = cells["task"].unique(maintain_order=True).to_list()
    settings = dict(sweep.provenance["settings"])
    record = {**sweep.provenance, "settings": {**settings.pop("shared", {}), **settings}}
    return TableView("Encoders by key size", ", ".join(tasks), sweep.summary().splitlines(), table, charts, record)
