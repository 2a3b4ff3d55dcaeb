"""Wen et al. 2023: attention of trained Dyck models by seed, their balance, and what it is used for."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import polars as pl

from identilens.lab.drawing import seeded
from identilens.lab.dyck.language import with_start
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.parsing import probe_prefix
from identilens.lab.dyck.settings import DyckSetting
from identilens.lab.dyck.train.measuring import pattern_table, variation_table
from identilens.lab.dyck.train.result import DyckRuns
from identilens.lab.dyck.train.study import folder_name, train_dyck
from identilens.reproduce.options import PrefixSettings, WenSettings
from identilens.reproduce.record import Reproduction, chosen_charts
from identilens.reproduce.wen2023_corollary2 import corollary2
from identilens.reproduce.wen2023_settings import (
    ACCURATE,
    LENGTHS,
    LOST,
    RANDOM,
    SETTINGS,
)
from identilens.runs.tables import Tables, markdown_table

Report = Callable[[DyckRuns, Sequence[DyckSetting], Any], tuple[str, Tables]]
"""Returns findings and further tables of trained models, by file name."""


def figure(
    name: str, report: Report, charts: tuple[str, ...] = ("",)
) -> Callable[..., Reproduction]:
    """Return what makes a figure of trained models; the run is in ``out/run`` and can be resumed.

    Args:
        name: Name of the settings of its models.
        report: Function that measures them.
        charts: Beginnings of the names of the charts; all by default.
    """

    def make(how: WenSettings, out: Path, **run: Any) -> Reproduction:
        chosen = SETTINGS[name]
        if how.epochs is not None:
            chosen = [
                replace(setting, training=replace(setting.training, epochs=how.epochs))
                for setting in chosen
            ]
        result = train_dyck(
            chosen,
            seeds=range(how.seeds),
            at_once=how.at_once,
            device=how.device,
            out=out / "run",
            **run,
        )
        findings, tables = report(result, chosen, how)
        tables = {
            "runs": result.table,
            "means": result.means(),
            "variation": result.variation,
            "heads": result.heads,
            "misleading": result.misleading(),
            **tables,
        }
        return Reproduction(
            {"seeds": how.seeds, **{kind.name: asdict(kind) for kind in chosen}},
            tables,
            f"{accuracy(result)}\n\n{findings}",
            chosen_charts(result, *charts),
        )

    return make


def models_of(result: DyckRuns, setting: DyckSetting) -> list[DyckForCausalLM]:
    """Return the models that a run in a folder has saved for a setting, by seed."""
    folder = (result.folder or Path()) / "models" / folder_name(setting.name)
    places = [
        folder / f"seed{seed:03d}"
        for seed in result.table.filter(setting=setting.name)["seed"].sort()
    ]
    return [DyckForCausalLM.from_pretrained(path).eval() for path in places]


def accuracy(result: DyckRuns) -> str:
    """Return accuracies as a Markdown table, and how many models have learned the language in distribution."""
    columns = ["setting", "seeds", "argmax", "threshold", "long_argmax", "long_threshold"]
    models = result.table.sort("argmax")
    reached = int((models["argmax"] >= ACCURATE).sum())
    least = models.row(0, named=True)
    return (
        f"{markdown_table(result.means().select(columns))}\n\n"
        f"In distribution {reached} of {len(models)} models close at least {100 * ACCURATE:.0f} % of the brackets "
        "correctly. The paper gives one number that all its models reach; it is missing in the available text. The "
        f"least is {100 * least['argmax']:.2f} % ({least['setting']}, seed {least['seed']}). Long prefixes have 400 to "
        "500 brackets."
    )


def varied(words: str, result: DyckRuns, *_: Any) -> tuple[str, Tables]:
    """Return the variation, what the paper says of it, and how many heads look like a stack."""
    rows = result.variation.with_columns(pl.col("error").fill_nan(None))
    findings = (
        f"{markdown_table(rows)}\n\nVariation is the mean of ‖A₁ − A₂‖² (Frobenius) over pairs of seeds, patterns "
        "causal, with its standard error over seeds. The last two columns are random causal patterns: rows uniform on "
        f"the simplex, and softmax of standard normal logits. {RANDOM}\n\n{words}\n\n"
        f"{markdown_table(result.misleading())}"
    )
    return findings, {}


def table1(result: DyckRuns, *_: Any) -> tuple[str, Tables]:
    """Return variation with a column for each layer, without the start token."""
    rows = result.variation.filter(with_start=False)
    # Two seeds have no standard error.
    cells = [
        f"{value:.3f}" + ("" if isnan(error) else f" ± {error:.3f}")
        for value, error in rows.select("value", "error").iter_rows()
    ]
    layer = pl.format("layer {}", pl.col("layer") + 1)
    rows = rows.with_columns(pl.Series("cell", cells, pl.String), place=layer)
    index = ["setting", "seeds", "size", "even_on_simplex"]
    table = rows.pivot("place", index=index, values="cell").rename(
        {"even_on_simplex": "random rows"}
    )
    findings = (
        f"{markdown_table(table, 2)}\n\n{LOST} Variation is the mean of ‖A₁ − A₂‖² over pairs of seeds, ± standard "
        "error over seeds, on the prefix with all brackets at all depths, for causal patterns without the start token. "
        "variation.csv has the same with the start token. Random rows: uniform on the simplex. "
        f"{RANDOM}"
    )
    return findings, {"table1": table}


def balance(
    result: DyckRuns, settings: Sequence[DyckSetting], _: WenSettings
) -> tuple[str, Tables]:
    """Return balance violation beside accuracy on long prefixes: rank correlations, and the constant of Theorem 2."""
    both = result.table.filter(pl.col("setting").is_in(result.settings[:2])).with_columns(
        setting=pl.lit("both")
    )
    measures = ("long_argmax", "long_threshold", "loss")
    correlations = (
        pl.concat([result.table, both])
        .group_by("setting", maintain_order=True)
        .agg(
            pl.len().alias("seeds"),
            pl.mean("violation", "largest_violation"),
            *(
                pl.corr("violation", name, method="spearman").fill_nan(None).alias(f"with {name}")
                for name in measures
            ),
        )
    )
    constant = pl.col("largest_violation") * settings[0].training.length
    bound = result.table.select("setting", "seed", "loss", "long_argmax", constant.alias("C"))
    findings = (
        f"Rank correlation of the balance violation with accuracy on long prefixes and with the training loss:\n\n"
        f"{markdown_table(correlations)}\n\n{LOST}\n\nTheorem 2 says S ≤ (C/N) P for all queries and "
        "pairs, with a constant C, when the loss on length N is near its least. The least C that each model needs, N "
        "times its largest S/P, is in bound.csv: mean "
        f"{bound['C'].mean():.2f} over all models, largest {bound['C'].max():.2f}. The settings with weight decay "
        "(AdamW's, decoupled, on cross-entropy) do not test Corollary 2, which says this of minimisers of the "
        "squared loss as L2 regularisation goes to 0. `identilens reproduce wen2023-corollary2` tests it."
    )
    return findings, {"correlations": correlations, "bound": bound}


def stack_like(result: DyckRuns, *_: Any) -> tuple[str, Tables]:
    """Return, for every head, how stack-like it looks, and the effect of changing its attention."""
    sorted_heads = result.heads.sort("stack_weight", descending=True)
    examples = sorted_heads.drop("stack_first", "even_weight", "largest_fall", "looks")
    correlation: float = result.heads.select(
        pl.corr("stack_weight", "largest_fall", method="spearman")
    ).item()
    turned = result.heads.filter(pl.col("stack_weight") >= 2 * pl.col("even_weight"))
    unused = turned.filter(~pl.col("used"))
    findings = (
        f"{markdown_table(result.misleading())}\n\nA head looks like a stack if closing brackets put half of their "
        "attention or more on the last unmatched bracket. It is used if removing it, or making its attention uniform "
        "or random, lowers accuracy by more than one percentage point. Rank correlation of the attention on the last "
        f"unmatched bracket and the largest of these losses, over all heads: {correlation:.2f}. With a weaker "
        f"criterion, at least twice the weight of uniform attention there, {len(turned)} of {len(result.heads)} heads "
        f"look like a stack, and {len(unused)} of these are not used. The ten most stack-like heads:\n\n"
        f"{markdown_table(examples.head(10))}\n\n"
        "The paper shows single examples of misleading heads (Fig. 4, 5) and of both kinds in one model (Fig. 6) "
        "and does not say how often they occur."
    )
    return findings, {"most_stack_like": examples.head(50)}


def by_prefix(
    lengths: Sequence[int], result: DyckRuns, settings: Sequence[DyckSetting], how: PrefixSettings
) -> tuple[str, Tables]:
    """Return the attention variation on random prefixes of some lengths, besides that with all brackets."""
    tables = []
    for setting in settings:
        models = models_of(result, setting)
        language = models[0].config.language
        prefixes = [("all brackets", with_start(probe_prefix(language)))]
        for length in lengths:
            draw = seeded(length)
            drawn = with_start(language.sample_prefixes(how.prefixes, length, draw))
            prefixes += [(f"{length} random", tokens) for tokens in drawn]
        for name, tokens in prefixes:
            patterns = pattern_table(setting.name, range(len(models)), models, tokens)
            measured = variation_table(patterns).filter(with_start=False)
            tables.append(
                measured.with_columns(prefix=pl.lit(name), brackets=pl.lit(len(tokens) - 1))
            )
    table = pl.concat(tables)
    means = table.group_by("setting", "layer", "prefix", maintain_order=True).agg(
        pl.len().alias("prefixes"),
        pl.first("brackets"),
        pl.mean("value"),
        pl.min("value").alias("least"),
        pl.max("value").alias("largest"),
        pl.mean("even_on_simplex").alias("random rows"),
        (pl.col("value") / pl.col("even_on_simplex")).mean().alias("over random"),
    )
    findings = (
        f"{markdown_table(means)}\n\nVariation as in wen2023-figure1, without the start token. {RANDOM} *all "
        f"brackets* is the prefix with all brackets at all depths, the others are drawn from Definition 1. {LOST} "
        "It says that variation is also high on other prefixes, and that the difference is even larger on longer ones."
    )
    return findings, {"prefixes": table, "by_prefix": means}


FIGURES = {
    "wen2023-table1": figure("table1", table1),
    "wen2023-figure1": figure(
        "figure1",
        partial(
            varied,
            f"{LOST} Its claim is that patterns of standard training vary nearly as much as random ones and are mostly "
            "not stack-like; an independent reimplementation found 1.02 without positions and 0.54 with linear "
            "positions (16 tokens, without the start token, causal; its layer and learning rate are not known).",
        ),
    ),
    "wen2023-figure2": figure(
        "figure2",
        partial(
            varied,
            f"{LOST} It says that variation is smaller after a minimal first layer than in standard models; an "
            "independent reimplementation found 0.13 for Eq. 19 (without the start token).",
        ),
    ),
    "wen2023-figure3": figure("figure3", balance, ("violation", "generalisation")),
    "wen2023-figure4": figure("figure4", stack_like),
    "wen2023-figure7": figure(
        "figure7",
        partial(
            varied,
            f"{LOST} It says that variation is low after a minimal first layer and surprisingly high in standard "
            "models, with and without positions.",
        ),
    ),
    "wen2023-figure8": figure("figure7", partial(by_prefix, LENGTHS)),
    "wen2023-figure10": figure("figure10", balance, ("violation", "generalisation")),
    "wen2023-footnote4": figure(
        "footnote4",
        partial(
            varied,
            "W_Q and W_K are 0 and not trained, so that every position attends equally to all positions up to its own. "
            "The paper says that such models fit the distribution almost perfectly; its number is missing in the "
            "available text.",
        ),
    ),
    "wen2023-footnote13": figure("figure1", partial(by_prefix, LENGTHS[:1])),
    "wen2023-c7": figure(
        "c7",
        partial(
            varied,
            "The paper says that models of Eq. 6 learn bounded Dyck languages (its accuracy is missing in the "
            "available text), and that their attention is as little interpretable as that of standard models.",
        ),
    ),
    "wen2023-corollary2": corollary2,
}
