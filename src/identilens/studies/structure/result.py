"""The result of a structure analysis: what the attention of a corpus has in common, head by head."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.charts.kit import Charts
from identilens.charts.page import Section
from identilens.errors import InputError
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Columns, Tables, counted, decimals, integers, percent
from identilens.studies.perturbation_views import (
    NORM_NAMES,
    PERTURBATIONS,
    by_perturbation,
    norm_correlations,
)
from identilens.studies.structure import maps, views
from identilens.studies.structure.sections import report_sections

HEAD: Columns = {"kind": pl.String, "layer": pl.Int64, "head": pl.Int64}
_DIMENSIONS: Columns = {
    **integers("dim_r", "dim_half", "dim_95", "energy_95"),
}
_PATTERN: Columns = {
    "empty_rows": pl.Int64,
    "pattern": pl.String,
    "score": pl.Float64,
    "place": pl.Int64,
}


@dataclass(frozen=True, kw_only=True)
class Structure(Result):
    """Every number of a structure analysis (structure2025, II.B and III).

    Attributes:
        table: One row per head: dim R, patterns raw and effective.
        growth: dim R against the number of texts.
        spectrum: Eigenvalues of R's Gram matrix.
        texts: Each text's ker(T')^⊥ against R, and what Naim & Asher's projection does to its weights.
        pairs: What a second text makes of weights that are equivalent under a first one.
        patterns: The score of every pattern.
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
        >>> structure.mean_weights(3, 5).shape
        torch.Size([36, 36])
        >>> structure.table.columns[:5]
        ['kind', 'layer', 'head', 'length', 'd_v']
    """

    analysis: ClassVar = "structure"
    title: ClassVar = "Structure of attention"
    keys: ClassVar = {"table": ("kind", "layer", "head")}
    schema: ClassVar = {
        "table": {
            **HEAD,
            **integers("length", "d_v", "texts", "representatives"),
            "threshold": pl.Float64,
            **_DIMENSIONS,
            "texts_to_fill": pl.Int64,
            "mean_rank": pl.Float64,
            **_PATTERN,
            **{f"effective_{name}": kind for name, kind in _PATTERN.items()},
            "raw_to_effective": pl.Float64,
        },
        "growth": {**HEAD, "texts": pl.Int64, **_DIMENSIONS},
        "spectrum": {**HEAD, "index": pl.Int64, "visibility": pl.Float64, "energy": pl.Float64},
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
        "patterns": {
            **HEAD,
            "weights": pl.String,
            "pattern": pl.String,
            "score": pl.Float64,
            "place": pl.Int64,
        },
        "clusters": {"clusters": pl.Int64, "silhouette": pl.Float64, "chosen": pl.Boolean},
        "representatives": {
            **integers("text", "cluster", "size"),
            "tokens": pl.String,
        },
        "stability": {
            **HEAD,
            "clusters": pl.Int64,
            **decimals("to_all", "to_next", "mean_to_all", "random_to_all"),
        },
        "perturbations": PERTURBATIONS,
    }

    growth: pl.DataFrame
    spectrum: pl.DataFrame
    texts: pl.DataFrame
    pairs: pl.DataFrame
    patterns: pl.DataFrame
    clusters: pl.DataFrame
    representatives: pl.DataFrame
    stability: pl.DataFrame
    perturbations: pl.DataFrame

    @property
    def sites(self) -> list[tuple[str, int]]:
        """Kind and layer of every attention layer."""
        return list(self.table.select("kind", "layer").unique(maintain_order=True).iter_rows())

    @property
    def threshold(self) -> float:
        """Threshold l of Eq. 8 in units of the mean weight, in [0, 1]."""
        return float(self.table["threshold"][0])

    def mean_weights(
        self, layer: int, head: int, kind: str | None = None, name: str = "raw"
    ) -> Float[Tensor, "q k"]:
        """Return Ã/n of one head, what Cut_l is applied to: ``raw``, ``effective``, ``all_raw`` or ``all_effective``.

        ``kind`` is needed where the model has several kinds of attention.

        Raises:
            InputError: If the result has no such head or matrix.
        """
        kinds = self.table["kind"].unique(maintain_order=True).to_list()
        if kind is None and len(kinds) > 1:
            raise InputError(f"the result has the kinds {', '.join(kinds)}. Pass kind=...")
        kind = kind or kinds[0]
        key = f"{kind}.layer{layer}.{name}"
        if key not in self.matrices or not 0 <= head < len(self.matrices[key]):
            available = ", ".join(f"{one} layer {number}" for one, number in self.sites)
            raise InputError(
                f"no {name} weights of {kind} layer {layer}, head {head}. There are {available}."
            )
        return self.matrices[key][head]

    def visibility_by_position(self) -> pl.DataFrame:
        """Return the share of a weight at each position that the output shows: mean (U Uᵀ)_jj over texts, in [0, 1].

        Columns: kind, layer, head, position, visibility. 0 where T is zero in every text, mean rank over n on average.
        """
        rows = []
        for kind, layer in self.sites:
            key = f"{kind}.layer{layer}"
            visibility = self.matrices[f"{key}.visibility"].diagonal(dim1=-2, dim2=-1).double()
            places = torch.arange(visibility.shape[-1]).expand_as(visibility)
            rows += maps.head_rows(key, {"position": places, "visibility": visibility})
        return pl.DataFrame(rows).explode("position", "visibility")

    def correlations(self) -> pl.DataFrame:
        """Return how well each norm follows the change of the final hidden state; see `norm_correlations`."""
        return norm_correlations(self.perturbations)

    def by_perturbation(self) -> pl.DataFrame:
        """Return what each kind of perturbation changes, by its size."""
        return by_perturbation(self.perturbations)

    def subject(self) -> str:
        """Return the model, and how many texts of which length."""
        row = self.table.row(0, named=True)
        size = f"{counted(row['texts'], 'text')} of {counted(row['length'], 'token')}"
        return f"{self.provenance['model'].get('name')} on {size}"

    def summary(self) -> Finding:
        """Return the finding in a few sentences."""
        return finding(self._tables())

    def overview(self) -> Tables:
        """Return the heads, with dim R and the best patterns."""
        kind = ["kind"] if self.table["kind"].n_unique() > 1 else []
        columns = [*kind, "layer", "head", "dim_r", "texts_to_fill", "energy_95"]
        patterns = {
            name: pl.format("{} {}", f"{prefix}pattern", pl.col(f"{prefix}score").round(2))
            for name, prefix in (("raw", ""), ("effective", "effective_"))
        }
        return {"Heads": self.table.select(*columns, **patterns)}

    def charts(self) -> Charts:
        """Return the charts: W of every head, R and its growth, patterns, equivalent weights, stability, norms."""
        galleries = {
            f"structures_{kind}_{name}": maps.gallery(
                self.table, self.matrices, kind, name, self._penalty
            )
            for kind in self.table["kind"].unique(maintain_order=True)
            for name in maps.SHOWN
        }
        return galleries | views.charts(self._frames())

    def sections(self) -> list[Section]:
        """Return the report: W of every head first, how to read it last."""
        special = self.provenance["settings"].get("special_positions", [])
        return report_sections(
            self._frames(), maps.token_maps(self.table, self.matrices, self._penalty, special)
        )

    @property
    def _penalty(self) -> float:
        return float(self.provenance["settings"]["penalty"])

    def _tables(self) -> Tables:
        tables = {name: getattr(self, name) for name in self.schema}
        return {
            **tables,
            "correlations": self.correlations(),
            "by_perturbation": self.by_perturbation(),
        }

    def _frames(self) -> Tables:
        made = {
            "positions": self.visibility_by_position(),
            "kept": maps.kept(self.table, self.matrices),
        }
        return self._tables() | made


_Said = tuple[str, dict[str, Any]]
"""A sentence with the numbers behind it; no words where there is nothing to say."""


def finding(frames: Tables) -> Finding:
    """Return the finding of the tables ``table``, ``texts``, ``pairs``, ``stability`` and ``correlations``."""
    heads = frames["table"]
    parts: Sequence[tuple[Callable[[pl.DataFrame], _Said], str]] = (
        (_subspace, "table"),
        (_patterns, "table"),
        (_stability, "stability"),
        (_projection, "texts"),
        (_pairs, "pairs"),
        (_norms, "correlations"),
    )
    said = [say(frames[name]) for say, name in parts]
    numbers = {name: value for _, measured in said for name, value in measured.items()}
    n, count = heads["length"][0], len(heads)
    headline = [
        (
            f"{numbers['full_heads']} of {count}",
            f"heads whose R is the whole space of {n} dimensions",
        ),
        (f"{numbers['dim_95']:.1f}", "directions hold 95 % of R's spectrum (mean over heads)"),
        (
            f"{numbers['patterned_heads']} of {count}",
            f"heads show a simple pattern at l = {heads['threshold'][0]:.4g}",
        ),
    ]
    within = numbers.get("spearman_structure")
    if within is not None:
        headline.append(
            (f"{within:.2f}", "rank correlation of ‖·‖_S with the change of the final state")
        )
    return Finding("\n".join(words for words, _ in said if words), numbers, headline)


def _subspace(heads: pl.DataFrame) -> _Said:
    n, texts = heads["length"][0], heads["texts"][0]
    full = heads.filter(pl.col("dim_r") == n)
    most = max(full["texts_to_fill"].to_list(), default=None)
    numbers = {
        "texts": texts,
        "length": n,
        "heads": len(heads),
        "full_heads": len(full),
        "texts_to_fill": most,
        "dim_half": heads["dim_half"].mean(),
        "dim_95": heads["dim_95"].mean(),
    }
    after = (
        ""
        if most is None
        else f", after {counted(most, 'text')} at the latest (usual where texts have fewer tokens than a head's values "
        "have dimensions)"
    )
    return (
        f"{counted(texts, 'text')} of {counted(n, 'token')}: R, the directions of weights that the head's output "
        f"shows in some text, is the whole space in {len(full)} of {len(heads)} heads{after}. On average, "
        f"{numbers['dim_half']:.1f} directions are visible in at least half of the texts, and {numbers['dim_95']:.1f} "
        "hold 95 % of the visibility (R's spectrum)."
    ), numbers


def _patterns(heads: pl.DataFrame) -> _Said:
    named = ", ".join(
        f"{name} {count}" for name, count in heads["pattern"].value_counts(sort=True).iter_rows()
    )
    numbers = heads.select(
        pl.first("threshold", "representatives"),
        patterned_heads=(~pl.col("pattern").is_in(["mixed", "empty"])).sum(),
        changed_heads=(pl.col("pattern") != pl.col("effective_pattern")).sum(),
    ).row(0, named=True)
    changed = numbers["changed_heads"]
    return (
        f"Of the maps averaged over {numbers['representatives']} representative texts, without weights below l = "
        f"{numbers['threshold']:.4g}, the best patterns are: {named} (number of heads). {changed} of {len(heads)} "
        "heads have another one in effective attention."
    ), numbers


def _stability(stability: pl.DataFrame) -> _Said:
    steady = stability.filter(pl.col("clusters") == pl.col("clusters").max()).drop_nulls("to_all")
    if not len(steady):
        return "", {}
    apart = steady["to_all"].mean()
    return (
        f"With {steady['clusters'][0]} representative texts W, the averaged maps after this cut, differs by "
        f"{percent(apart)} from that of all texts (Frobenius norm, mean over heads)."
    ), {"to_all": apart}


def _projection(texts: pl.DataFrame) -> _Said:
    signs = texts.drop_nulls("negative")
    if not len(signs):
        return "", {}
    numbers = signs.select(
        negative_maps=(pl.col("least") < -1e-9).mean(),
        negative_entries=pl.col("negative").mean(),
        least_entry=pl.col("least").min(),
        row_sum_error=pl.col("row_sum_error").max(),
    ).row(0, named=True)
    return (
        f"Naim & Asher's projection of the weights (same output and row sums) has negative entries in "
        f"{percent(numbers['negative_maps'])} of the heads and texts ("
        f"{percent(numbers['negative_entries'])} of all entries, the least {numbers['least_entry']:z.3f}); row sums "
        f"are kept to {numbers['row_sum_error']:.1e}."
    ), numbers


def _pairs(pairs: pl.DataFrame) -> _Said:
    able = pairs.drop_nulls("disagree")
    if not len(able):
        return "", {}
    row = able.select(pl.col("disagree", "change_second").mean()).row(0, named=True)
    return (
        f"Weights with the same output in one text have different ones in another in {percent(row['disagree'])} of "
        f"{len(able):,} cases; the other text's output moves by {percent(row['change_second'])} on average."
    ), row


def _norms(correlations: pl.DataFrame) -> _Said:
    within = dict(correlations.select("norm", "within_spearman").iter_rows())
    if not within:
        return "", {}
    labels = NORM_NAMES | {"structure_effective": "‖·‖_S with W from effective attention"}
    named = ", ".join(
        f"{label} {'undefined' if within[name] is None else f'{within[name]:.2f}'}"
        for name, label in labels.items()
        if name != "output"
    )
    numbers = {f"spearman_{name}": value for name, value in within.items()}
    return (
        f"Rank correlation of norms of a change of weights with the change of the final hidden state, within "
        f"heads: {named}.",
        numbers,
    )
