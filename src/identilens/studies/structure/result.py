"""The result of a structure analysis: what the attention of a corpus has in common, head by head."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.charts.viewer import TokenMap
from identilens.charts.views import View
from identilens.measures.structure.weights import structure_weights
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, decimals, integers
from identilens.studies.structure.perturbation_views import (
    NORMS_VIEW,
    PERTURBATIONS,
    by_perturbation,
    named_norms,
    norm_correlations,
)

_SHOWN = {"raw": "raw attention", "effective": "effective attention (sizes)"}
HEAD: Columns = {"kind": pl.String, **integers("layer", "head")}
_DIMENSIONS = integers("dim_r", "dim_half", "dim_95")
_FINDING = """\
{texts:text} of {length:token}: R, the directions of weights that the head's output shows in some text, is the whole \
space in {full_heads} of {heads:head}; on average {dim_95:.1f} directions hold 95 % of its spectrum.
W, the maps averaged over {representatives:representative} without weights below l = {threshold:.4g}, changes by \
{raw_to_effective:.0%} of its length where attention is effective, a mean over heads.
Weights with the same output in one text have different ones in another in {disagree:.1%} of the cases; the other \
text's output moves by {change_second:.1%} on average.
"""
_TILES = """\
{full_heads} of {heads} | heads whose R is the whole space of {length} dimensions
{dim_95:.1f} | directions hold 95 % of R's spectrum (mean over heads)
{raw_to_effective:.0%} | of W changes where attention is effective, at l = {threshold:.4g} (mean over heads)
{spearman_structure:.2f} | rank correlation of ‖·‖_S with the change of the final state
"""
_W = """\
W = Norm(Cut_l(Ã)): the weights of {representatives:representative} are averaged, entries below l are set aside, and \
rows are scaled to sum 1 (structure2025, Eq. 7 and 8). Texts are compared position by position: a head that looks at \
commas wherever they stand has no structure in this sense. Rows are queries, columns keys; a row with nothing left \
stays empty. Effective attention has signs and is shown by its sizes.
"""
_HEADS = """\
R is the span of the column spaces of T over all texts (Eq. 6): every direction of weights that is visible in the \
head's output in at least one text. With more texts R soon is the whole space, which says only that texts differ.
With the most representatives W differs by {to_all:.1%} from that of all texts.
"""


@dataclass(frozen=True, kw_only=True)
class Structure(Result):
    """Every number of a structure analysis (structure2025, II.B and III).

    Attributes:
        table: One row per head: dim R, and how W of raw and of effective attention differ.
        growth: dim R against the number of texts.
        texts: Each text's ker(T')^⊥ against R, and what Naim & Asher's projection does to its weights.
        pairs: What a second text makes of weights that are equivalent under a first one.
        clusters: Silhouette by number of clusters.
        representatives: The chosen texts.
        stability: How W moves as clusters grow.
        perturbations: Norms of perturbations beside the change of the model's output.
        matrices: [head, query, key] by ``<kind>.layer<l>.<name>``: ``raw``, ``effective`` (sizes of effective weights)
            are means over representatives, ``all_raw``, ``all_effective`` over all texts, ``visibility`` the mean
            projector on ker(T')^⊥.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> structure = idl.structure(lens, idl.examples(), length=36, clusters=2, perturbed=0)
        >>> structure.matrices["encoder.layer3.raw"][5].shape
        torch.Size([36, 36])
        >>> structure.table.columns[:5]
        ['kind', 'layer', 'head', 'length', 'd_v']
    """

    analysis: ClassVar = "structure"
    title: ClassVar = "Structure of attention"
    schema: ClassVar = {
        "table": {
            **HEAD,
            **integers("length", "d_v", "texts", "representatives"),
            "threshold": pl.Float64,
            **_DIMENSIONS,
            "mean_rank": pl.Float64,
            **integers("empty_rows", "effective_empty_rows"),
            "raw_to_effective": pl.Float64,
        },
        "growth": {**HEAD, "texts": pl.Int64, **_DIMENSIONS},
        "texts": {
            "text": pl.Int64,
            **HEAD,
            "rank": pl.Int64,
            **decimals(
                "ignored_dimension",
                "ignored",
                "outside",
                "outside_half",
                "negative",
                "least",
                "row_sum_error",
            ),
        },
        "pairs": {
            "first_text": pl.Int64,
            "second_text": pl.Int64,
            **HEAD,
            "freedom": pl.Int64,
            **decimals("overlap", "chance", "moved", "change_first", "change_second"),
            "disagree": pl.Boolean,
        },
        "clusters": {"clusters": pl.Int64, "silhouette": pl.Float64, "chosen": pl.Boolean},
        "representatives": {
            **integers("text", "cluster", "size"),
            "tokens": pl.String,
        },
        "stability": {
            **HEAD,
            "clusters": pl.Int64,
            **decimals("to_all", "to_next"),
        },
        "perturbations": PERTURBATIONS,
    }

    words: ClassVar = {
        "dim_r": "dim R",
        "dim_half": "visible in half of the texts",
        "dim_95": "95 % of the spectrum",
    }
    views: ClassVar = {
        "structures": View(title="W of every head", text=_W, maps="token_maps"),
        "heads": View(title="Heads", text=_HEADS, table="heads", listed=True),
        "norms": NORMS_VIEW,
    }

    growth: pl.DataFrame
    texts: pl.DataFrame
    pairs: pl.DataFrame
    clusters: pl.DataFrame
    representatives: pl.DataFrame
    stability: pl.DataFrame
    perturbations: pl.DataFrame

    def correlations(self) -> pl.DataFrame:
        """Return how well each norm follows the change of the final hidden state; see `norm_correlations`."""
        return norm_correlations(self.perturbations)

    def norms(self) -> pl.DataFrame:
        """Return the correlations with the norms by name."""
        return named_norms(self.perturbations)

    def by_perturbation(self) -> pl.DataFrame:
        """Return what each kind of perturbation changes, by its size."""
        return by_perturbation(self.perturbations)

    def heads(self) -> pl.DataFrame:
        """Return dim R of each head, and how W of raw and of effective attention differ."""
        columns = ("empty_rows", "effective_empty_rows", "raw_to_effective")
        return self.table.select(*HEAD, *_DIMENSIONS, *columns)

    def token_maps(self) -> list[TokenMap]:
        """Return mean weights and W of every head for the viewer, over representatives."""
        special = self.provenance["settings"].get("special_positions", [])
        shown = []
        for row in self.table.iter_rows(named=True):
            names = [
                f"{position} (special)" if position in special else str(position)
                for position in range(row["length"])
            ]
            note = "dim R = {dim_r} of {length}.".format(**row)
            for name, words in _SHOWN.items():
                key = f"{row['kind']}.layer{row['layer']}.{name}"
                mean, level = self.matrices[key][row["head"]], row["threshold"]
                layers = {
                    f"W at l = {level:.4g}": structure_weights(mean, level),
                    "mean weights": mean,
                }
                choices = {column: row[column] for column in ("kind", "layer", "head")}
                choices["weights"] = words
                shown.append(TokenMap(choices, layers, names, names, note))
        return shown

    def summary(self) -> Finding:
        """Return how much of the space R is, how W changes with the kind of attention, and what two texts share."""
        full = pl.col("dim_r") == pl.col("length")
        able = pl.col("disagree").is_not_null()
        most = pl.col("clusters") == pl.col("clusters").max()
        norms = dict(self.correlations().select("norm", "within_spearman").iter_rows())
        parts = (
            self.table.select(
                pl.first("texts", "length", "threshold", "representatives"),
                pl.col("dim_95", "raw_to_effective").mean(),
                heads=pl.len(),
                full_heads=full.sum(),
            ),
            self.pairs.filter(able).select(pl.col("disagree", "change_second").mean()),
            self.stability.filter(most).select(pl.col("to_all").mean()),
        )
        numbers = {name: value for part in parts for name, value in part.row(0, named=True).items()}
        spearman = {f"spearman_{name}": value for name, value in norms.items()}
        return Finding.of(_FINDING, _TILES, **numbers, **spearman)
