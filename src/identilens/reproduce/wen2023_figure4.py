"""Figures 4 to 6 of Wen et al. 2023: attention that looks like a stack but is not used, and the converse."""

from pathlib import Path

import polars as pl

from identilens.lab.dyck.settings import DyckSetting
from identilens.reproduce.record import Reproduction
from identilens.reproduce.wen2023 import FewSeeds, Run, deep, gpt, misleading, recipe, reproduction, run_settings
from identilens.runs.tables import markdown_table

SETTINGS = [
    DyckSetting(
        f"{layers} layers, {heads} {'head' if heads == 1 else 'heads'}",
        {**gpt(layers, hidden=48), "num_attention_heads": heads},
        deep(),
    )
    for layers in (2, 3)
    for heads in (1, 2, 4)
]


def figure4(out: Path, run: Run) -> Reproduction:
    """Return, for every head of trained models, how stack-like it looks, and the effect of changing its attention."""
    result = run_settings(out, SETTINGS, run)
    examples = result.heads.sort("stack_weight", descending=True).select(
        "setting", "seed", "layer", "head", "stack_weight", "accuracy", "removed", "even", "random", "used"
    )
    correlation: float = result.heads.select(pl.corr("stack_weight", "largest_fall", method="spearman")).item()
    turned = result.heads.filter(pl.col("stack_weight") >= 2 * pl.col("even_weight"))
    unused = turned.filter(~pl.col("used"))
    findings = (
        f"{misleading(result)}\n\nA head looks like a stack if closing brackets put half of their attention or more "
        "on the last unmatched bracket. It is used if removing it, or making its attention uniform or random, costs "
        "more than one point of accuracy. Rank correlation of looking like a stack and this cost, over all heads: "
        f"{correlation:.2f}. With a weaker criterion, at least twice the weight of uniform attention there, "
        f"{len(turned)} of {len(result.heads)} heads look like a stack, and {len(unused)} of these are "
        "not used. The ten most stack-like heads:\n\n"
        f"{markdown_table(examples.head(10))}\n\n"
        "The paper shows single examples of misleading heads (Fig. 4, 5) and of both kinds in one model (Fig. 6) "
        "and does not say how often they occur."
    )
    return reproduction(
        "wen2023-figure4", "Wen et al. 2023, Figures 4 to 6", result, SETTINGS, run, findings,
        {"most_stack_like": examples.head(50)},
    )  # fmt: skip


RECIPE = recipe(figure4, FewSeeds)
