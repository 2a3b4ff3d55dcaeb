"""The result of training Dyck transformers: how well each seed does, what its attention looks like and does."""

from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import torch

from identilens.charts.cells import token_map
from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Charts, bars, rule, scatter
from identilens.charts.labels import file_names
from identilens.charts.views import View
from identilens.runs.result import Finding, Result
from identilens.runs.tables import counted, decimals, integers

FACTS = {
    **integers("types", "depth", "layers", "heads"),
    **dict.fromkeys(("block", "first_layer", "positions", "data"), pl.String),
    **decimals("learning_rate", "weight_decay", "contrast"),
    **integers("epochs"),
}
"""What is known of a model before its training."""

_MODEL = {"setting": pl.String, **integers("seed")}
_HEAD = {**_MODEL, **integers("layer", "head")}
_PLACE = {"setting": pl.String, **integers("layer", "head")}
_SHOWN = 8
"""Seeds in a gallery on paper."""

_FINDING = """\
The mean model of each setting closes at least {argmax:≥.1%} of the brackets correctly in distribution (the worst \
model {worst:.1%}), and at most {long_argmax:≤.1%} on long prefixes.
The last layer's last head varies between seeds by {value_least:.2g} to {value_most:.2g}, rows drawn at random by \
{random_least:.2g} to {random_most:.2g} (means of ‖A₁ − A₂‖² over pairs, without the start token).
{looks} of {heads:head} look like a stack; for {misleading} of these accuracy falls by at most one percentage point \
when the head is removed, or its attention made uniform or random.
"""
_TILES = """\
{argmax:.1%} | of the closing brackets right in distribution, least mean of a setting
{long_argmax:.1%} | right on long prefixes, best mean of a setting
{models} | models measured
{misleading} of {heads} | heads look like a stack and are not used
"""
_GALLERY = """\
One seed's attention on the same prefix, which has brackets of all types at all depths: a row per query token, a \
column per key token. Models of a setting differ only in their seed.
"""
_ACCURACY = """\
Argmax: the right closing bracket has the largest logit of all closing brackets, over prefixes that end with a \
closing bracket (the paper's measure). Threshold: it has more than 0.8 of the closing brackets' probability, over all \
places with a non-empty stack (that of its code).
In distribution: fresh sequences of the training law. Errors are standard errors over seeds.
Long prefixes have {shortest} to {longest} brackets.
"""
_VARIATION = """\
Mean of ‖A₁ − A₂‖² (Frobenius) over pairs of seeds. Patterns are causal, entries above the diagonal zero. Random rows \
are even on the simplex of visible tokens, random logits standard normal. The start token's row and column are left \
out; the table of the result has both. Errors are standard errors over seeds (jackknife).
"""
_USE = """\
A head looks like a stack where closing brackets put at least half of their attention on the last unmatched bracket. \
It is used where removing it, making its attention even or drawing it at random lowers accuracy by more than one \
percentage point (dotted lines). A head that looks like a stack but is not used misleads readers of its attention map \
(Wen et al. 2023, Proposition 1 and B.1).
Heads are changed one at a time and on these sequences: heads that back one another up look unused.
"""
_BALANCE = """\
The balance violation is the mean of S/P (Wen et al. 2023, Eq. 15 to 17): how much a matching pair of brackets adds \
to what the last token receives, against the least that two prefixes with different last brackets must add. Perfect \
length generalisation needs 0.
"""


def _with_limits(frame: pl.DataFrame, *columns: str, **look: Any) -> AnyChart:
    """Return a scatter with the limits from which a head looks like a stack, and counts as used."""
    return rule(rule(scatter(frame, *columns, **look), x=0.5), y=0.01)


@dataclass(frozen=True, kw_only=True)
class DyckRuns(Result):
    """Dyck transformers trained from several seeds in several settings (Wen et al. 2023, section 4, B.1, D).

    Attributes:
        table: One row a setting and seed: what it is, losses, accuracies, balance violation.
        curves: Training losses: one row a setting, seed and epoch.
        heads: How stack-like each head looks, and accuracy by argmax with its attention changed.
        patterns: Attention on the probe prefix, row after row in ``weights``.
        variation: Attention variation over seeds by setting, layer, head and convention, random baselines beside it.

    Examples:
        >>> import identilens as idl
        >>> runs = idl.lab.train_dyck(
        ...     seeds=(0, 1), length=8, depth=2, hidden=8, tokens=400, epochs=2, batch_size=25,
        ...     sequences=10, long_sequences=2, lengths=(20, 24), head_sequences=5, draws=1,
        ... )
        >>> runs.settings, len(runs.heads)
        (['2 types, depth 2, 2 layers'], 4)
        >>> runs.variation.columns
        ['setting', 'layer', 'head', 'with_start', 'size', 'seeds', 'value', 'error', 'even_on_simplex',
        'softmax_of_normals']
    """

    analysis: ClassVar = "lab dyck train"
    title: ClassVar = "Dyck transformers"
    schema: ClassVar = {
        "table": {
            "setting": pl.String,
            **FACTS,
            **integers("seed"),
            **decimals(
                "loss",
                "argmax",
                "threshold",
                "long_argmax",
                "long_threshold",
                "violation",
                "largest_violation",
                "condition",
            ),
        },
        "curves": {**_MODEL, **integers("epoch"), **decimals("loss")},
        "heads": {
            **_HEAD,
            **decimals(
                "stack_weight",
                "stack_first",
                "even_weight",
                "accuracy",
                "removed",
                "even",
                "random",
                "largest_fall",
            ),
            "looks": pl.Boolean,
            "used": pl.Boolean,
        },
        "patterns": {
            **_HEAD,
            **integers("size"),
            "tokens": pl.List(pl.String),
            "weights": pl.List(pl.Float32),
        },
        "variation": {
            **_PLACE,
            "with_start": pl.Boolean,
            **integers("size", "seeds"),
            **decimals("value", "error", "even_on_simplex", "softmax_of_normals"),
        },
    }

    words: ClassVar = {
        "argmax": "Argmax: share of closing brackets that are right",
        "threshold": "Threshold",
        "long_argmax": "Long prefixes, argmax",
        "long_threshold": "Long prefixes, threshold",
        "violation": "Balance violation",
        "stack_weight": "Attention on the last unmatched bracket",
        "largest_fall": "Largest fall of accuracy",
        "even_on_simplex": "Random rows",
        "softmax_of_normals": "Random logits",
        "place": "Setting, layer and head",
        "between_seeds": "Between seeds",
    }
    views: ClassVar = {
        "gallery": View(title="Attention by seed", text=_GALLERY, method="galleries"),
        "accuracy": View(title="Accuracy", table="means", listed=True),
        "generalisation": View(
            scatter,
            (("long_argmax", "long_threshold"), "setting", "measure"),
            title="Accuracy on long prefixes, a point a seed",
            text=_ACCURACY,
            also=("seed",),
        ),
        "variation": View(
            bars,
            (("between_seeds", "even_on_simplex", "softmax_of_normals"), "place", "measure"),
            title="Attention variation between seeds and of random patterns",
            text=_VARIATION,
            table="variation_by_head",
            listed=True,
        ),
        "looks_and_use": View(
            _with_limits,
            ("stack_weight", "largest_fall", "setting"),
            title="What changing a head costs, against how stack-like it looks",
            text=_USE,
            table="heads",
            also=("seed", "layer", "head"),
        ),
        "use": View(title="Heads by looks and use", table="misleading", listed=True),
        "violation": View(
            scatter,
            ("violation", ("long_argmax", "long_threshold"), "setting"),
            title="Accuracy on long prefixes against balance violation",
            text=_BALANCE,
            also=("seed",),
            look={"x_scale": "log"},
        ),
    }

    curves: pl.DataFrame
    heads: pl.DataFrame
    patterns: pl.DataFrame
    variation: pl.DataFrame

    @property
    def settings(self) -> list[str]:
        """Names of the settings, in order."""
        return self.table["setting"].unique(maintain_order=True).to_list()

    def means(self) -> pl.DataFrame:
        """Return each measure's mean and standard error over the seeds of a setting."""
        measures = pl.col(
            "loss", "argmax", "threshold", "long_argmax", "long_threshold", "violation"
        )
        return self.table.group_by("setting", maintain_order=True).agg(
            pl.len().alias("seeds"),
            measures.mean(),
            (measures.std() / pl.len().sqrt()).name.suffix("_error"),
            argmax_least=pl.min("argmax"),
        )

    def misleading(self) -> pl.DataFrame:
        """Return, for each setting and layer, how many heads look like a stack or not, and are used or not."""
        looks, used = pl.col("looks"), pl.col("used")
        return self.heads.group_by("setting", "layer", maintain_order=True).agg(
            pl.len().alias("heads"),
            pl.mean("stack_weight", "largest_fall"),
            misleading=(looks & ~used).sum(),
            stack_and_used=(looks & used).sum(),
            used_unlike_a_stack=(~looks & used).sum(),
            neither=(~looks & ~used).sum(),
        )

    def subject(self) -> str:
        """Return the numbers of settings and seeds."""
        seeds = self.table["seed"].n_unique()
        return f"{counted(len(self.settings), 'setting')}, {counted(seeds, 'seed')} each"

    def variation_by_head(self) -> pl.DataFrame:
        """Return the variation without the start token, by setting, layer and head in words."""
        return self.variation.filter(with_start=False).select(
            pl.format("{}, layer {}, head {}", *_PLACE).alias("place"),
            pl.exclude("with_start", "value", *_PLACE),
            between_seeds="value",
        )

    def summary(self) -> Finding:
        """Return accuracies, the variation of the last layer, and how many heads only look like a stack."""
        means, shown = self.means(), self.heads.filter("looks")
        last = (
            self.variation.filter(with_start=False)
            .sort("layer", "head")
            .group_by("setting", maintain_order=True)
            .last()
        )
        shortest, longest = self.provenance["settings"]["lengths"]
        return Finding.of(
            _FINDING,
            _TILES,
            argmax=means["argmax"].min(),
            worst=self.table["argmax"].min(),
            long_argmax=means["long_argmax"].max(),
            models=len(self.table),
            value_least=last["value"].min(),
            value_most=last["value"].max(),
            random_least=last["even_on_simplex"].min(),
            random_most=last["even_on_simplex"].max(),
            looks=len(shown),
            heads=len(self.heads),
            misleading=len(shown.filter(used=False)),
            shortest=shortest,
            longest=longest,
        )

    def galleries(self) -> Charts:
        """Return the attention of each setting's first seeds on the probe prefix (Wen et al. 2023, Fig. 1, 2, 7)."""
        charts: Charts = {}
        for setting, file in file_names(self.settings).items():
            shown = (
                self.patterns.filter(setting=setting)
                .group_by("layer", "head")
                .head(_SHOWN)
                .sort("layer", "head", maintain_order=True)
            )
            maps = {
                "seed {seed}, layer {layer}, head {head}".format_map(row): torch.tensor(
                    row["weights"]
                ).view(row["size"], -1)
                for row in shown.iter_rows(named=True)
            }
            tokens = ["S", *shown["tokens"][0][1:]]
            charts[f"gallery_{file}"] = token_map(
                maps,
                tokens,
                tokens,
                setting,
                columns=shown["seed"].n_unique(),
                side=110,
                domain=(0, 1),
            )
        return charts
