"""The report of trained Dyck transformers: what each part shows, in words."""

from collections.abc import Sequence

import polars as pl

from identilens.charts.page import Section
from identilens.charts.viewer import TokenMap
from identilens.lab.dyck.train.views import pattern

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
    "bracket. It is used where removing it, making its attention even or drawing it at random costs more than one "
    "point of accuracy. Heads that look and are not used mislead whoever reads the picture (Wen et al. 2023, "
    "Proposition 1 and B.1). Dotted: half of the attention, one point of accuracy."
)
_BALANCE = (
    "The balance violation is the mean of S/P (Wen et al. 2023, Eq. 15 to 17): how much a matching pair of brackets "
    "adds to what the last token receives, against the least that two prefixes with different last brackets must add. "
    "Perfect length generalisation needs 0."
)
_READING = (
    "Dyck of k types and depth D: balanced brackets of k types, at most D open at once. At every place of a prefix at "
    "most one closing bracket is possible, that of the last unmatched one: it can be told whether a model knows it.",
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
    patterns: pl.DataFrame, means: pl.DataFrame, variation: pl.DataFrame, misleading: pl.DataFrame,
    charts: Sequence[str], lengths: Sequence[int] | None,
) -> list[Section]:  # fmt: skip
    """Return the sections of the report, with the charts of these names and the lengths of long prefixes."""
    words = "" if not lengths else f" of {lengths[0]} to {lengths[1]} brackets"
    accuracy = [name for name in ("generalisation", "curves") if name in charts]
    varied = [name for name in ("variation",) if name in charts]
    parts = [
        Section("gallery", "Attention by seed", [_GALLERY], maps=_maps(patterns)),
        Section("accuracy", "Accuracy", [_ACCURACY.format(lengths=words)], accuracy, means),
        Section("variation", "Variation between seeds", [_VARIATION], varied, variation),
        Section("use", "What attention is used for", [_USE], ["looks_and_use"], misleading),
    ]
    balance = [name for name in charts if name.startswith("violation_")]
    if balance:
        parts.append(Section("balance", "Balance", [_BALANCE], balance))
    return [*parts, Section("reading", "How to read this report", _READING)]


def _maps(patterns: pl.DataFrame) -> list[TokenMap]:
    maps = []
    for (setting,), of_setting in patterns.group_by(["setting"], maintain_order=True):
        tokens = ["S" if token == "<start>" else token for token in of_setting["tokens"][0].to_list()]
        for seed, layer, head in of_setting.select("seed", "layer", "head").iter_rows():
            choices = {"setting": str(setting), "layer": layer, "head": head, "seed": seed}
            maps.append(TokenMap(choices, {"attention": pattern(of_setting, seed, layer, head)}, tokens, tokens))
    return maps
