"""What the report of token identifiability says beside its charts."""

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from identilens.charts.page import Section
from identilens.studies.tokens.views import probe_words

EXPERIMENTS = {
    "same-layer": "each layer's own probe",
    "across-layers": "trained on one layer, tested on all",
    "layer-to-layer": "from each layer to the one below",
    "neighbours": "neighbouring tokens",
    "data-share": "share of the training data",
}
_OPTIONAL = {
    "checkpoint": "Checkpoint",
    "layer_trained": "Trained on",
    "layer_tested": "Tested on",
    "layer_target": "Recovers layer",
    "offset": "Offset",
    "share": "Training share",
}


def sections(means: pl.DataFrame, charts: Sequence[str]) -> list[Section]:
    """Return the parts of the report from the means over folds, a row per cell, and the names of its charts."""
    groups = [
        Section(anchor, title, (text,), drawn, note=_BARS)
        for anchor, (title, beginnings, text) in _GROUPS.items()
        if (drawn := [name for name in charts if name.startswith(beginnings)])
    ]
    table = Section("table", "All means", frame=means_table(means), note=_COLUMNS)
    return [*groups, table, Section("reading", "How to read this report", _READING)]


def means_table(means: pl.DataFrame) -> pl.DataFrame:
    """Return the means as a page shows them, without columns that are constant or empty."""
    shown = {name: label for name, label in _OPTIONAL.items() if means[name].n_unique() > 1}
    if means["layer_trained"].equals(means["layer_tested"], check_names=False):
        both = ("layer_trained", "layer_tested")
        shown = {
            "layer_tested": "Layer",
            **{name: label for name, label in shown.items() if name not in both},
        }
    percents = {
        "rate": "Recovered (%)",
        "rate_error": "±",
        "token_rate": "Any position (%)",
        "train_rate": "On training (%)",
        "chance": "Chance (%)",
    }
    frame = means.select(
        pl.Series(
            "Probe", [probe_words(*pair) for pair in means.select("probe", "distance").iter_rows()]
        ),
        *(pl.col(name).alias(label) for name, label in shown.items()),
        *((100 * pl.col(name)).round(1).alias(label) for name, label in percents.items()),
        pl.col("validation_loss").alias("Validation loss"),
        pl.Series("Learning rate", [_rates(row) for row in means.iter_rows(named=True)], pl.String),
        pl.col("epochs").alias("Epochs"),
        (100 * pl.col("converged")).round(1).alias("Stopped early (%)"),
        pl.col("folds").alias("Folds"),
    )
    return frame.select(column for column in frame if column.null_count() < len(column))


def _rates(row: Mapping[str, Any]) -> str | None:
    low, high = row["lowest_learning_rate"], row["highest_learning_rate"]
    return None if low is None else f"{low:g}" if low == high else f"{low:g} to {high:g}"


_GROUPS = {
    "rates": (
        "Layer by layer",
        ("rate_by_layer", "token_rate_by_layer"),
        "The share of test tokens whose own input vector is the nearest one in the sentence to what the probe makes of "
        "the hidden state (Brunner et al. 2020, Fig. 2a; from layer to layer Fig. 11 to 13). The second figure also "
        "counts another position that contains the same token.",
    ),
    "across": (
        "Trained on one layer, tested on all",
        "across_layers",
        "Each line is one probe, trained on the hidden states of a single layer and tested on those of every layer "
        "(Brunner et al. 2020, Fig. 2b, 8, 9 and 10). The maps show the same numbers.",
    ),
    "neighbours": (
        "Neighbouring tokens",
        "neighbours",
        "Here the probe must recover a neighbour's input vector, to the left or to the right (Brunner et al. 2020, "
        "Fig. 14 to 17). Tokens without such a neighbour are left out.",
    ),
    "shares": (
        "How much data the probe needs",
        "rate_by_share",
        "The probe is trained on a part of the training sentences; validation and test sentences stay the same "
        "(Brunner et al. 2020, B.2). Smaller parts lie within larger ones.",
    ),
    "train": (
        "Training against test sentences",
        "train_and_test",
        "How much better a probe does on the sentences it was trained on (dashed) than on test sentences (Brunner "
        "et al. 2020, Fig. 7).",
    ),
}
"""Parts of the report: heading, how the names of their charts begin, and text."""

_BARS = "Means over folds; bars are standard errors over folds. Point at a mark for its numbers."
_COLUMNS = (
    "± is the standard error of the recovered share over folds, in points. Epochs: the most that the chosen rate ran "
    "in a fold. Stopped early: share of folds that ended for lack of improvement and not at the limit of epochs."
)
_READING = (
    "Recovered: a probe g maps the hidden state e_i^l of token i after layer l to a vector. The token counts as "
    "recovered when, of the input vectors of the same sentence, x_i is the nearest to g(e_i^l) (Brunner et al. 2020, "
    "section 4). The input x is what the embedding block gives: token, position and segment. Each position is its own "
    "target, also where a token is repeated; where several inputs are equally near, the token earns its share of one.",
    "Any position: the same, but any position of the sentence that contains the same token of the vocabulary counts.",
    "Probes: Naive is the hidden state itself. Linear is one matrix without bias. MLP has one hidden layer with GELU. "
    "Ridge is the linear L2 probe in closed form, its penalty chosen on validation sentences. Linear and MLP are "
    "trained by Adam, with early stopping on validation sentences.",
    "Distance: cosine or L2, of the loss in training and of the look-up.",
    "Folds, ±: sentences are split at random into 70 % for training, 15 % for validation and 15 % for test; no "
    "sentence is in two parts. Folds share sentences, so that ± says how much the split matters, not how much another "
    "corpus would differ.",
    "Chance: what guessing a position of the sentence earns: the mean of 1/n over test tokens.",
    "What this does not say: a recovered token is still identifiable; how much of its hidden state it makes up, and "
    "whether the model uses it, is another question (see Hidden Token Attribution). A probe that fails does not prove "
    "that the token is lost: a stronger probe, more data or a longer training might find it.",
    "Source: G. Brunner, Y. Liu, D. Pascual, O. Richter, M. Ciaramita, R. Wattenhofer. On Identifiability in "
    "Transformers. ICLR 2020.",
)
