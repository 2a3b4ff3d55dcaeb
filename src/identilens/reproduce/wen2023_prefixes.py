"""Footnote 13 and Figure 8 of Wen et al. 2023: attention variation on other and on longer prefixes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import polars as pl
import torch
from annotated_types import Ge
from jaxtyping import Int
from torch import Tensor

from identilens.lab.dyck.language import Dyck, with_start
from identilens.lab.dyck.settings import DyckSetting
from identilens.lab.dyck.train.measuring import probe_patterns, probe_tokens, variation_table
from identilens.lab.dyck.train.result import DyckRuns
from identilens.reproduce import wen2023 as wen
from identilens.reproduce import wen2023_figure1, wen2023_figure7
from identilens.reproduce.record import Recipe, Reproduction
from identilens.runs.settings import NOT_RECORDED
from identilens.runs.tables import markdown_table

LENGTHS = (16, 28, 56, 112)
"""Numbers of brackets of the prefixes of Figure 8."""


@dataclass(frozen=True, kw_only=True)
class PrefixSettings(wen.WenSettings):
    """The models, and the number of prefixes.

    Attributes:
        trained: Folder `run` of a finished reproduction of Figure 1 (footnote 13) or 7 (Figure 8), whose models are
            used, however many seeds and epochs they have. Default: train them.
        prefixes: Number of random prefixes of each length.
    """

    trained: Annotated[Path | None, NOT_RECORDED] = None
    prefixes: Annotated[int, Ge(1)] = 10


def footnote13(out: Path, run: wen.Run) -> Reproduction:
    """Attention variation of standard models on random prefixes of 16 brackets, besides that with all brackets."""
    return _measured("footnote13", "footnote 13", wen2023_figure1.SETTINGS, LENGTHS[:1], out, run)


def figure8(out: Path, run: wen.Run) -> Reproduction:
    """Attention variation on prefixes of 16 to 112 brackets, for models trained on prefixes."""
    return _measured("figure8", "Figure 8", wen2023_figure7.SETTINGS, LENGTHS, out, run)


def _measured(
    name: str, place: str, settings: Sequence[DyckSetting], lengths: Sequence[int], out: Path, run: wen.Run
) -> Reproduction:
    how = run.settings
    if not isinstance(how, PrefixSettings):
        raise TypeError(f"expected PrefixSettings, got {how}")
    result = wen.run_settings(out, settings, run) if how.trained is None else wen.trained_run(how.trained, settings)
    table = pl.concat([by_prefix(result, one, lengths, how.prefixes) for one in settings])
    means = table.group_by("setting", "layer", "prefix", maintain_order=True).agg(
        pl.len().alias("prefixes"), pl.col("brackets").first(), pl.col("value").mean(),
        pl.col("value").min().alias("least"), pl.col("value").max().alias("largest"),
        pl.col("even_on_simplex").mean().alias("random rows"),
        (pl.col("value") / pl.col("even_on_simplex")).mean().alias("over random"),
    )  # fmt: skip
    findings = (
        f"{markdown_table(means)}\n\nVariation as in wen2023-figure1, without the start token. {wen.RANDOM} *all "
        f"brackets* is the prefix with all brackets at all depths, the others are drawn from Definition 1. {wen.LOST} "
        "It says that "
        "variation is also high on other prefixes, and that the difference is even larger on longer ones."
    )
    return wen.reproduction(
        f"wen2023-{name}", f"Wen et al. 2023, {place}", result, settings, run, findings,
        {"prefixes": table, "by_prefix": means},
    )  # fmt: skip


def by_prefix(result: DyckRuns, setting: DyckSetting, lengths: Sequence[int], count: int) -> pl.DataFrame:
    """Return the attention variation of one setting's models, a row for each layer, head and prefix."""
    models, tables = wen.models_of(result, setting), []
    for name, tokens in _prefixes(models[0].config.language, probe_tokens(models[0].config), lengths, count):
        patterns = [
            {"setting": setting.name, "seed": seed, "layer": layer, "head": head, "size": len(weights),
             "weights": weights.flatten().tolist()}
            for seed, model in enumerate(models) for layer, head, weights in probe_patterns(model, tokens)
        ]  # fmt: skip
        measured = variation_table(pl.DataFrame(patterns)).filter(~pl.col("with_start"))
        tables.append(measured.with_columns(prefix=pl.lit(name), brackets=pl.lit(len(tokens) - 1)))
    return pl.concat(tables)


def _prefixes(
    language: Dyck, probe: Int[Tensor, " n"], lengths: Sequence[int], count: int
) -> list[tuple[str, Int[Tensor, " n"]]]:
    drawn = [
        (f"{length} random", tokens)
        for length in lengths
        for tokens in with_start(language.sample_prefixes(count, length, torch.Generator().manual_seed(length)))
    ]
    return [("all brackets", probe), *drawn]


FOOTNOTE13: Recipe = wen.recipe(footnote13, PrefixSettings)
FIGURE8: Recipe = wen.recipe(figure8, PrefixSettings)
