"""Charts and sections of trained Dyck transformers."""

from collections.abc import Sequence

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import bars, lines, rule, scatter, strip
from identilens.charts.page import Section
from identilens.charts.viewer import TokenMap

SHOWN = 8
"""Seeds in a gallery on paper."""

MEASURES = {
    "long_argmax": "last bracket, argmax",
    "long_threshold": "right closing bracket above 0.8",
}


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
        "value": "between seeds",
        "even_on_simplex": "rows even on the simplex",
        "softmax_of_normals": "softmax of normal logits",
    }
    rows = table.filter(~pl.col("with_start")).select(place, *names).rename(names)
    drawn = rows.unpivot(index="place", variable_name="of", value_name="value")
    return bars(
        drawn,
        "value",
        "place",
        "of",
        x_title="Attention variation, start token left out",
        color_title="",
        title="Attention variation between seeds and of random patterns",
    )


def generalisation(table: pl.DataFrame) -> AnyChart:
    """Return each seed's accuracy on long prefixes, by both measures."""
    long = table.select("setting", "seed", *MEASURES).unpivot(
        list(MEASURES), index=["setting", "seed"]
    )
    drawn = long.with_columns(pl.col("variable").replace(MEASURES))
    return strip(
        drawn,
        "value",
        "setting",
        "variable",
        x_title="Accuracy on long prefixes",
        color_title="Measure",
        title="Length generalisation, a point a seed",
        also=("seed",),
    )


def violation(table: pl.DataFrame, measure: str) -> AnyChart:
    """Return accuracy on long prefixes against the balance violation, a point a seed (Wen et al. 2023, Fig. 3, 10)."""
    drawn = table.select("violation", measure, "setting", "seed")
    return scatter(
        drawn,
        "violation",
        measure,
        "setting",
        log_x=True,
        x_title="Balance violation",
        y_title=f"Accuracy ({MEASURES[measure]})",
        color_title="Setting",
        also=("seed",),
        title="Accuracy on long prefixes against balance violation",
    )


def looks_and_use(heads: pl.DataFrame) -> AnyChart:
    """Return, for each head, what a change of its attention costs against how stack-like it looks (Fig. 4 to 6)."""
    drawn = heads.select(
        "stack_weight", "setting", "seed", "layer", "head", fall=100 * pl.col("largest_fall")
    )
    chart = scatter(
        drawn,
        "stack_weight",
        "fall",
        "setting",
        x_title="Attention on the last unmatched bracket",
        y_title="Largest fall of accuracy (points)",
        color_title="Setting",
        x_domain=(0, 1),
        also=("seed", "layer", "head"),
        title="What changing a head costs, against how stack-like it looks",
    )
    return rule(rule(chart, x=0.5), y=1.0)


def curves(losses: pl.DataFrame) -> AnyChart:
    """Return the training loss by epoch, a line a setting and seed."""
    drawn = losses.with_columns(model=pl.format("{}, seed {}", "setting", "seed"))
    return lines(
        drawn.select("epoch", "loss", "model"),
        "epoch",
        "loss",
        "model",
        log_y=True,
        points=False,
        x_title="Epoch",
        y_title="Training loss",
        color_title="Model",
        title="Training loss by epoch",
    )


def pattern(patterns: pl.DataFrame, seed: int, layer: int, head: int) -> Float[Tensor, "query key"]:
    """Return one attention pattern of a setting's patterns."""
    row = patterns.filter(seed=seed, layer=layer, head=head)
    return torch.tensor(row["weights"][0].to_list(), dtype=torch.float32).reshape(
        row["size"][0], -1
    )


_GALLERY = (
    "One seed's attention on the same prefix, which has brackets of all types at all depths: a row per query token, "
    "a column per key token. Models of a setting differ only in their seed."
)
_ACCURACY = (
    "Argmax: the right closing bracket has the largest logit of all closing brackets, over prefixes that end with a "
    "closing bracket (the paper's measure). Threshold: it has more than 0.8 of the closing brackets' probability, over "
    "all places with a non-empty stack (that of its code). In distribution: fresh sequences of the training law. Long: "
    "prefixes{lengths}. Errors are standard errors over seeds."
)
_VARIATION = (
    "Mean of ‖A₁ − A₂‖² (Frobenius) over pairs of seeds. Patterns are causal, entries above the diagonal zero. Whether "
    "the start token's row and column count changes the number; both are given. Random rows are even on the simplex of "
    "visible tokens, random logits standard normal; both include the start token and are cut in the same way. Errors "
    "are standard errors over seeds (jackknife)."
)
_USE = (
    "A head looks like a stack where closing brackets put at least half of their attention on the last unmatched "
    "bracket. It is used where removing it, making its attention even or drawing it at random lowers accuracy by more "
    "than one percentage point. A head that looks like a stack but is not used misleads readers of its attention map "
    "(Wen et al. 2023, Proposition 1 and B.1). Dotted lines: half of the attention, one percentage point."
)
_BALANCE = (
    "The balance violation is the mean of S/P (Wen et al. 2023, Eq. 15 to 17): how much a matching pair of brackets "
    "adds to what the last token receives, against the least that two prefixes with different last brackets must add. "
    "Perfect length generalisation needs 0."
)
_READING = (
    "Dyck of k types and depth D: balanced brackets of k types, at most D open at once. At every place of a prefix at "
    "most one closing bracket is possible, that of the last unmatched one, so one can test whether a model knows it.",
    "Stack-like: attention that points at the last unmatched bracket, as a person would solve the task. It is one way "
    "of many: uniform attention solves it too (Corollary 1).",
    "Behind a minimal first layer: tokens enter as type and depth of their bracket and nothing else; the layer trained "
    "is the second one (Assumption 1, Eq. 19 to 21).",
    "λ: weight of the contrastive term (Eq. 22): logits are to stay as they are when a nest of pairs is put before the "
    "prefix.",
    "What this does not say: a head that is not used on these sequences may be used on others. Changing one head keeps "
    "the others as they are: heads that back one another up look unused one by one.",
    "Source: K. Wen, Y. Li, B. Liu, A. Risteski. Transformers are uninterpretable with myopic methods: a case study "
    "with bounded Dyck grammars. NeurIPS 2023.",
)


def sections(
    patterns: pl.DataFrame,
    means: pl.DataFrame,
    variation: pl.DataFrame,
    misleading: pl.DataFrame,
    charts: Sequence[str],
    lengths: Sequence[int] | None,
) -> list[Section]:
    """Return the sections of the report, with the charts of these names and the lengths of long prefixes."""
    words = "" if not lengths else f" of {lengths[0]} to {lengths[1]} brackets"
    accuracy = [name for name in ("generalisation", "curves") if name in charts]
    varied = [name for name in ("variation",) if name in charts]
    maps = []
    for (setting,), of_setting in patterns.group_by(["setting"], maintain_order=True):
        tokens = [
            "S" if token == "<start>" else token for token in of_setting["tokens"][0].to_list()
        ]
        for seed, layer, head in of_setting.select("seed", "layer", "head").iter_rows():
            choices = {"setting": str(setting), "layer": layer, "head": head, "seed": seed}
            maps.append(
                TokenMap(
                    choices, {"attention": pattern(of_setting, seed, layer, head)}, tokens, tokens
                )
            )
    parts = [
        Section("gallery", "Attention by seed", [_GALLERY], maps=maps),
        Section("accuracy", "Accuracy", [_ACCURACY.format(lengths=words)], accuracy, means),
        Section("variation", "Variation between seeds", [_VARIATION], varied, variation),
        Section("use", "What attention is used for", [_USE], ["looks_and_use"], misleading),
    ]
    balance = [name for name in charts if name.startswith("violation_")]
    if balance:
        parts.append(Section("balance", "Balance", [_BALANCE], balance))
    return [*parts, Section("reading", "How to read this report", _READING)]
