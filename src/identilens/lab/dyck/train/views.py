"""How trained Dyck transformers are drawn."""

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import bars, lines, rule, scatter, strip

SHOWN = 8
"""Seeds in a gallery on paper."""

MEASURES = {"long_argmax": "last bracket, argmax", "long_threshold": "right closing bracket above 0.8"}


def gallery(patterns: pl.DataFrame, setting: str) -> AnyChart:
    """Return the attention of a setting's first seeds on the probe prefix, a row for each layer and head."""
    seeds = patterns["seed"].unique(maintain_order=True).to_list()[:SHOWN]
    heads = patterns.select("layer", "head").unique(maintain_order=True).rows()
    tokens = ["S" if token == "<start>" else token for token in patterns["tokens"][0].to_list()]
    maps = {
        f"seed {seed}, layer {layer}, head {head}": pattern(patterns, seed, layer, head)
        for layer, head in heads
        for seed in seeds
    }
    return token_map(maps, tokens, tokens, setting, columns=len(seeds), side=110, domain=(0, 1))


def variation(table: pl.DataFrame) -> AnyChart:
    """Return the attention variation of every setting, layer and head beside that of random patterns."""
    place = pl.format("{}, layer {}, head {}", "setting", "layer", "head").alias("place")
    names = {
        "value": "between seeds", "even_on_simplex": "rows even on the simplex",
        "softmax_of_normals": "softmax of normal logits",
    }  # fmt: skip
    rows = table.filter(~pl.col("with_start")).select(place, *names).rename(names)
    drawn = rows.unpivot(index="place", variable_name="of", value_name="value")
    return bars(
        drawn, "value", "place", "of", x_title="Attention variation, start token left out", color_title="",
        title="Attention variation between seeds and of random patterns",
    )  # fmt: skip


def generalisation(table: pl.DataFrame) -> AnyChart:
    """Return each seed's accuracy on long prefixes, by both measures."""
    long = table.select("setting", "seed", *MEASURES).unpivot(list(MEASURES), index=["setting", "seed"])
    drawn = long.with_columns(pl.col("variable").replace(MEASURES))
    return strip(
        drawn, "value", "setting", "variable", x_title="Accuracy on long prefixes", color_title="Measure",
        title="Length generalisation, a point a seed", also=("seed",),
    )  # fmt: skip


def violation(table: pl.DataFrame, measure: str) -> AnyChart:
    """Return accuracy on long prefixes against the balance violation, a point a seed (Wen et al. 2023, Fig. 3, 10)."""
    drawn = table.select("violation", measure, "setting", "seed")
    return scatter(
        drawn, "violation", measure, "setting", log_x=True, x_title="Balance violation",
        y_title=f"Accuracy ({MEASURES[measure]})", color_title="Setting", also=("seed",),
        title="Accuracy on long prefixes against balance violation",
    )  # fmt: skip


def looks_and_use(heads: pl.DataFrame) -> AnyChart:
    """Return, for each head, what a change of its attention costs against how stack-like it looks (Fig. 4 to 6)."""
    drawn = heads.select("stack_weight", "setting", "seed", "layer", "head", fall=100 * pl.col("largest_fall"))
    chart = scatter(
        drawn, "stack_weight", "fall", "setting", x_title="Attention on the last unmatched bracket",
        y_title="Largest fall of accuracy (points)", color_title="Setting", x_domain=(0, 1),
        also=("seed", "layer", "head"), title="What changing a head costs, against how stack-like it looks",
    )  # fmt: skip
    return rule(rule(chart, x=0.5), y=1.0)


def curves(losses: pl.DataFrame) -> AnyChart:
    """Return the training loss by epoch, a line a setting and seed."""
    drawn = losses.with_columns(model=pl.format("{}, seed {}", "setting", "seed"))
    return lines(
        drawn.select("epoch", "loss", "model"), "epoch", "loss", "model", log_y=True, points=False, x_title="Epoch",
        y_title="Training loss", color_title="Model", title="Training loss by epoch",
    )  # fmt: skip


def pattern(patterns: pl.DataFrame, seed: int, layer: int, head: int) -> Float[Tensor, "query key"]:
    """Return one attention pattern of a setting's patterns."""
    row = patterns.filter(seed=seed, layer=layer, head=head)
    return torch.tensor(row["weights"][0].to_list(), dtype=torch.float32).reshape(row["size"][0], -1)
