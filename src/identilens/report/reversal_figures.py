"""The figures of the reversal task (structure2025, Fig. 1 and 2)."""

from collections.abc import Sequence

import numpy as np
import polars as pl
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from identilens.measures.structure import structure_weights
from identilens.report.paper import SERIES, new_sheet
from identilens.studies.reversal.study import ReversalStudy

_MEASURES = {"score": "score (cosine)", "support": "support (F₁)"}


def attention_sheet(studies: Sequence[ReversalStudy], text: int = 0) -> Figure:
    """Return the cross attention of every head of some models on one input (Fig. 1)."""
    panels = [(study, head) for study in studies for head in range(len(study.weights))]
    figure = new_sheet(0.6 + 2.0 * len(panels), 2.6)
    axes_row = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (study, head) in zip(axes_row, panels, strict=True):
        axes.imshow(study.weights[head, text].numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        names = [str(token) for token in study.source[text].tolist()]
        axes.set_xticks(range(len(names)), names, fontsize=5)
        axes.set_yticks(range(len(names)), names[::-1], fontsize=5)
        axes.set_title(_name(study, head))
        axes.set_xlabel("Input token")
    axes_row[0].set_ylabel("Output token")
    figure.colorbar(
        ScalarMappable(Normalize(0, 1), "Blues"), ax=list(axes_row), fraction=0.03, pad=0.01, label="Attention"
    )
    return figure


def threshold_sheet(studies: Sequence[ReversalStudy], shown: Sequence[float], published: float) -> Figure:
    """Return W at some thresholds for the best head of each model, and its match against l below (Fig. 2).

    Args:
        studies: The models.
        shown: Thresholds on the mean weight whose W is drawn.
        published: The draft's threshold, marked.
    """
    figure = new_sheet(1.0 + 1.05 * len(shown), 1.35 * len(studies) + 3.0)
    grid = figure.add_gridspec(len(studies) + 1, len(shown), height_ratios=[1.2] * len(studies) + [2.2])
    for row, study in enumerate(studies):
        head = best_head(study)
        for column, threshold in enumerate(shown):
            axes = figure.add_subplot(grid[row, column])
            W = structure_weights(study.weights[head].mean(0), threshold)
            axes.imshow(W.numpy(), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_title(f"l = {threshold:g}", fontsize=7)
            if column == 0:
                axes.set_ylabel(_name(study, head), fontsize=7)
    axes = figure.add_subplot(grid[len(studies), :])
    for place, study in enumerate(studies):
        head = best_head(study)
        for scale, measure, style in (("mean", "score", "-"), ("mean", "support", "--"), ("sum", "support", ":")):
            sweep = study.head_sweep(head, scale)
            label = f"{_name(study, head)}: {_MEASURES[measure]}" + (", l on the sum" if scale == "sum" else "")
            axes.plot(sweep["threshold"].to_numpy(), sweep[measure].to_numpy(), style, color=SERIES[place], label=label)
    axes.axvline(published, color=SERIES[5], linewidth=0.8, linestyle="--")
    axes.set(xlabel="Threshold l", ylabel="Match with the antidiagonal", xlim=(0, 1), ylim=(0, 1.03))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def best_head(study: ReversalStudy) -> int:
    """Return the head whose W matches the antidiagonal best at any threshold on the mean."""
    means = study.sweep.filter((pl.col("scale") == "mean") & (pl.col("weights") == "raw"))
    best = means.group_by("head").agg(pl.col("score").max()).sort("score", "head", descending=[True, False])
    return int(np.asarray(best["head"])[0])


def _name(study: ReversalStudy, head: int) -> str:
    return "LSTM" if study.model == "lstm" else f"Transformer, head {head}"
