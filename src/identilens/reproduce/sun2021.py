"""Sun and Marasović 2021, "Effective Attention Sheds Light On Interpretability": token types after fine-tuning.

They compare raw and effective attention of BERT fine-tuned on GLUE tasks, and report that effective attention is less
associated with features of pretraining such as the separator, and more with features of the task.
"""

from pathlib import Path
from typing import Any

import polars as pl

from identilens.charts.kit import bars, choose
from identilens.models.loading import load
from identilens.reproduce.inputs import held_out, tuned_model
from identilens.reproduce.options import TuningTasks
from identilens.reproduce.record import Reproduction
from identilens.runs.tables import markdown_table
from identilens.studies.audit.result import Audit
from identilens.studies.audit.study import audit


def sun2021(settings: TuningTasks, out: Path, **run: Any) -> Reproduction:
    """Raw and effective attention by token type, before and after fine-tuning on SST, MRPC and CoLA."""
    tables = []
    for task in settings.tasks:
        texts = held_out(task, settings.data, settings.limit)
        tuned = tuned_model(task, settings, out)
        for name, model in (("pretrained", settings.model), ("fine-tuned", str(tuned))):
            result = audit(
                load(model),
                texts,
                certain_rows=0,
                examples=0,
                out=out / f"{task}-{name}",
                **run,
            )
            tables.append(by_type(result).with_columns(task=pl.lit(task), checkpoint=pl.lit(name)))
    table = pl.concat(tables).select("task", "checkpoint", "key_type", "raw", "effective")
    outer = table.filter(pl.col("key_type").is_in(["[CLS]", "[SEP]"]))
    sums = outer.group_by("task", "checkpoint", maintain_order=True).agg(pl.sum("raw", "effective"))
    findings = (
        f"{markdown_table(table)}\n\nMean attention that each type of token receives, in absolute value, as a share of "
        "the sum over types; mean over layers and heads. Published: effective attention is less associated with the "
        "separator than raw attention; the paper's numbers are of BERT-base on other tasks. Measured on [CLS] and "
        f"[SEP] together:\n\n{markdown_table(sums)}"
    )
    long = table.unpivot(
        ["raw", "effective"], index=["task", "checkpoint", "key_type"], variable_name="attention"
    )
    chart = bars(
        long.filter(checkpoint="fine-tuned"),
        "value",
        "key_type",
        "attention",
        labels={"key_type": "Token type", "value": "Share received", "attention": "Attention"},
        title="Attention by token type, fine-tuned",
    )
    return Reproduction(
        settings.recorded(),
        {"token_types": table},
        findings,
        {"token_types": choose(chart, long, "task", "Task")},
    )


def by_type(result: Audit) -> pl.DataFrame:
    """Return the share of mean raw and effective attention that each type of key receives, over layers and heads."""
    size = pl.col("raw", "effective").abs()
    share = result.received().with_columns(size / size.sum().over("layer", "head"))
    return share.group_by("key_type").agg(pl.mean("raw", "effective")).sort("raw", descending=True)


FIGURES = {"sun2021": sun2021}
