"""Figures 12 and 13 of Brunner et al. 2020: naive look-up from layer to layer before and after fine-tuning."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
from annotated_types import Ge

from identilens.models.loading import load
from identilens.reproduce.brunner2020 import BrunnerSettings, Figures, Rows, percent, reproduction
from identilens.reproduce.brunner2020_figure2 import rates, tables
from identilens.reproduce.fine_tuned import FineTuning, tuned_model
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.progress import Progress
from identilens.studies.tokens.result import TokenIdentifiability
from identilens.studies.tokens.study import token_identifiability


@dataclass(frozen=True, kw_only=True)
class TunedSettings(BrunnerSettings, FineTuning):
    """The model, its fine-tuning, and the splits.

    Attributes:
        folds: Number of random splits of the sentences.
    """

    folds: Annotated[int, Ge(1)] = 10


def figure12(settings: TunedSettings, out: Path, **run: Any) -> Reproduction:
    """Token identifiability across single layers before and after fine-tuning on MRPC."""
    return _tuned("12", "mrpc", settings, out, **run)


def figure13(settings: TunedSettings, out: Path, **run: Any) -> Reproduction:
    """Token identifiability across single layers before and after fine-tuning on CoLA."""
    return _tuned("13", "cola", settings, out, **run)


def compare(figure: str, result: TokenIdentifiability) -> Rows:
    """Return the change of the rate at the last layer."""
    means, rows = result.means(), []
    last = means["layer_tested"].max()
    for distance, published in (("l2", "a remarkable decrease"), ("cosine", "affected much less")):
        cells = rates(means, "naive", distance, layer_tested=last).sort("checkpoint")
        before, after = (cells.filter(pl.col("checkpoint") == name)["rate"][0] for name in ("model", "compared"))
        rows.append((figure, f"naive, {distance}, layer {last}, before and after", published,
                     f"{percent(before)}, {percent(after)}"))  # fmt: skip
    return rows


def _tuned(
    figure: str, task: Literal["mrpc", "cola"], settings: TunedSettings, out: Path, *, progress: Progress | None,
    **run: bool,
) -> Reproduction:  # fmt: skip
    how = FineTuning(**settings.values_of(FineTuning))
    tuned = tuned_model(task, settings.model, settings.data, out, how, progress, overwrite=run.get("overwrite", False))
    # The paper looks up tokens of MRPC in both figures.
    lens, texts = load(settings.model), settings.texts("mrpc")
    found = token_identifiability(
        lens, texts, experiment="layer-to-layer", probes="naive", folds=settings.folds, compare_model=str(tuned),
        out=out / "run", progress=progress, **run,
    )  # fmt: skip
    digest = found.provenance["settings"]["compared"]["sha256"]
    one = Figures(
        f"brunner2020-figure{figure}", f"Figure {figure}", "mrpc", lambda result: compare(figure, result),
        ("rate_by_layer",), tables,
    )  # fmt: skip
    return reproduction(one, settings, lens, found, len(texts), {"fine-tuned parameters (sha256)": digest})


FIGURE12 = Recipe(TunedSettings, figure12, "folds")
FIGURE13 = Recipe(TunedSettings, figure13, "folds")
