"""The result of a structure analysis: what the attention of a corpus has in common, head by head."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import polars as pl
from jaxtyping import Float
from rich.console import Console
from safetensors import safe_open
from torch import Tensor

from identilens.errors import InputError
from identilens.results.files import write_tensors
from identilens.results.stored import load_run, percent, print_table, save_run
from identilens.studies.structure.norm_study import by_perturbation, norm_correlations

ANALYSIS = "structure"
HEAD: dict[str, Any] = {"kind": pl.String, "layer": pl.Int64, "head": pl.Int64}

TABLES: dict[str, dict[str, Any]] = {
    "table": {
        **HEAD,
        "length": pl.Int64, "d_v": pl.Int64, "texts": pl.Int64, "representatives": pl.Int64, "threshold": pl.Float64,
        "dim_r": pl.Int64, "texts_to_fill": pl.Int64, "dim_half": pl.Int64, "dim_95": pl.Int64, "energy_95": pl.Int64,
        "mean_rank": pl.Float64,
        "empty_rows": pl.Int64, "pattern": pl.String, "score": pl.Float64, "place": pl.Int64,
        "effective_empty_rows": pl.Int64, "effective_pattern": pl.String, "effective_score": pl.Float64,
        "effective_place": pl.Int64,
        "raw_to_effective": pl.Float64,
    },
    "growth": {
        **HEAD, "texts": pl.Int64, "dim_r": pl.Int64, "dim_half": pl.Int64, "dim_95": pl.Int64, "energy_95": pl.Int64,
    },
    "spectrum": {**HEAD, "index": pl.Int64, "visibility": pl.Float64, "energy": pl.Float64},
    "texts": {
        "text": pl.Int64, **HEAD,
        "rank": pl.Int64, "ignored_dimension": pl.Float64, "ignored": pl.Float64, "outside": pl.Float64,
        "outside_half": pl.Float64, "negative": pl.Float64, "least": pl.Float64, "row_sum_error": pl.Float64,
    },
    "pairs": {
        "first_text": pl.Int64, "second_text": pl.Int64, **HEAD,
        "freedom": pl.Int64, "overlap": pl.Float64, "chance": pl.Float64, "moved": pl.Float64,
        "change_first": pl.Float64, "change_second": pl.Float64, "disagree": pl.Boolean,
    },
    "patterns": {**HEAD, "weights": pl.String, "pattern": pl.String, "score": pl.Float64, "place": pl.Int64},
    "clusters": {"clusters": pl.Int64, "silhouette": pl.Float64, "chosen": pl.Boolean},
    "representatives": {"text": pl.Int64, "cluster": pl.Int64, "size": pl.Int64, "tokens": pl.String},
    "stability": {
        **HEAD, "clusters": pl.Int64, "to_all": pl.Float64, "to_next": pl.Float64, "mean_to_all": pl.Float64,
        "random_to_all": pl.Float64,
    },
    "perturbations": {
        "text": pl.Int64, **HEAD,
        "perturbation": pl.String, "draw": pl.Int64, "share": pl.Float64, "structure": pl.Float64,
        "structure_effective": pl.Float64, "one": pl.Float64, "infinity": pl.Float64, "frobenius": pl.Float64,
        "output": pl.Float64, "hidden": pl.Float64,
    },
}  # fmt: skip
"""Columns of each table of the result; `docs/structure.md` says what they mean."""


class StoredTensors(Mapping[str, Tensor]):
    """Tensors in one safetensors file, read one by one when asked for."""

    def __init__(self, file: Path) -> None:
        self.file = file
        with safe_open(file, framework="pt") as tensors:
            self._keys = tuple(tensors.keys())

    def __getitem__(self, key: str) -> Tensor:
        if key not in self._keys:
            raise KeyError(key)
        with safe_open(self.file, framework="pt") as tensors:
            return tensors.get_tensor(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True)
class Structure:
    """Every number of a structure analysis (structure2025, II.B and III).

    Attributes:
        table: One row a head: dim R, patterns raw and effective.
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
        provenance: What made it.
    """

    table: pl.DataFrame
    growth: pl.DataFrame
    spectrum: pl.DataFrame
    texts: pl.DataFrame
    pairs: pl.DataFrame
    patterns: pl.DataFrame
    clusters: pl.DataFrame
    representatives: pl.DataFrame
    stability: pl.DataFrame
    perturbations: pl.DataFrame
    matrices: Mapping[str, Tensor]
    provenance: dict[str, Any]

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
    ) -> Float[Tensor, "query key"]:
        """Return Ã/n of one head, what Cut_l is applied to; W is `identilens.structure.structure_weights` of it.

        Args:
            layer: Counts from 0.
            head: Counts from 0.
            kind: Needed where the model has several kinds of attention.
            name: ``raw``, ``effective``, ``all_raw`` or ``all_effective``.

        Raises:
            InputError: If the result has no such head or matrix.
        """
        kinds = self.table["kind"].unique(maintain_order=True).to_list()
        if kind is None and len(kinds) > 1:
            raise InputError(f"the result has the kinds {', '.join(kinds)}. Pass kind=...")
        key = f"{kind or kinds[0]}.layer{layer}.{name}"
        if key not in self.matrices or not 0 <= head < len(self.matrices[key]):
            raise InputError(
                f"no {name} weights of {kind or kinds[0]} layer {layer}, head {head}. There are "
                f"{', '.join(f'{one} layer {number}' for one, number in self.sites)}."
            )
        return self.matrices[key][head]

    def visibility_by_position(self) -> pl.DataFrame:
        """Return how much of a weight at each position the output can tell: the mean (U Uᵀ)_jj over texts, in [0, 1].

        Columns: kind, layer, head, position, visibility. 0 where T is zero in every text, mean rank over n on average.
        """
        frames = []
        for kind, layer in self.sites:
            found = self.matrices[f"{kind}.layer{layer}.visibility"].diagonal(dim1=-2, dim2=-1).double().numpy()
            heads, n = found.shape
            frames.append(
                pl.DataFrame(
                    {
                        "kind": [kind] * (heads * n),
                        "layer": [layer] * (heads * n),
                        "head": [head for head in range(heads) for _ in range(n)],
                        "position": list(range(n)) * heads,
                        "visibility": found.ravel(),
                    }
                )
            )
        return pl.concat(frames)

    def correlations(self) -> pl.DataFrame:
        """Return how well each norm follows the change of the final hidden state; see `norm_correlations`."""
        return norm_correlations(self.perturbations)

    def by_perturbation(self) -> pl.DataFrame:
        """Return what each kind of perturbation changes; see `identilens.studies.structure.norm_study.by_perturbation`."""
        return by_perturbation(self.perturbations)

    def summary(self) -> str:
        """Return the finding in a few sentences."""
        return "\n".join(self._sentences())

    def show(self) -> None:
        """Print the finding and the heads."""
        Console().print(self.summary())
        kind = ["kind"] if self.table["kind"].n_unique() > 1 else []
        raw, effective = (
            pl.format("{} {}", pl.col(f"{prefix}pattern"), pl.col(f"{prefix}score").round(2))
            for prefix in ("", "effective_")
        )
        columns = [*kind, "layer", "head", "dim_r", "texts_to_fill", "energy_95"]
        print_table("Heads", self.table.select(*columns, raw.alias("raw"), effective.alias("effective")))

    def save(self, folder: str | Path) -> None:
        """Write the result as a folder that `load` reads.

        Raises:
            OutputFolderError: If the folder holds another run, or cannot be written.
        """
        tables = {name: getattr(self, name) for name in TABLES}
        save_run(folder, self.provenance, tables, lambda path: write_tensors(matrix_file(path), self.matrices))

    @classmethod
    def load(cls, folder: str | Path) -> "Structure":
        """Return the result that a folder holds.

        Raises:
            OutputFolderError: If the folder holds no finished run of this kind.
        """
        tables, record = load_run(folder, ANALYSIS, TABLES)
        return cls(**tables, matrices=StoredTensors(matrix_file(Path(folder))), provenance=record)

    def to_html(self, path: str | Path) -> Path:
        """Write the report as one self-contained HTML file and return its path."""
        from identilens.report import write_structure_report

        return write_structure_report(self, Path(path))

    def _repr_html_(self) -> str:
        return f"<p>{escape(self.summary())}</p>{self.table._repr_html_()}"

    def _sentences(self) -> Iterator[str]:
        heads, n = self.table, int(self.table["length"][0])
        texts = int(heads["texts"][0])
        full = heads.filter(pl.col("dim_r") == n)
        filled = full["texts_to_fill"].drop_nulls()
        most = int(filled.max()) if len(filled) else 0  # pyright: ignore[reportArgumentType] an integer column
        yield (
            f"{texts} texts of {n} tokens: R is the whole space in {len(full)} of {len(heads)} heads"
            + (f", after {most} {'text' if most == 1 else 'texts'} at the latest" if len(full) else "")
            + f"; directions that at least half of the texts can tell number {heads['dim_half'].mean():.1f} on "
            f"average, and {heads['dim_95'].mean():.1f} hold 95 % of the spectrum."
        )
        counts = heads["pattern"].value_counts(sort=True)
        named = ", ".join(f"{name} {count}" for name, count in counts.iter_rows())
        changed = (heads["pattern"] != heads["effective_pattern"]).sum()
        yield (
            f"Structures W of {heads['representatives'][0]} representatives at l = {self.threshold:.4g}, by their best "
            f"pattern: {named}; {changed} of {len(heads)} heads look different in effective attention."
        )
        steady = self.stability.filter(pl.col("clusters") == pl.col("clusters").max()).drop_nulls("to_all")
        if len(steady):
            yield (
                f"With {steady['clusters'][0]} clusters, W differs from the W of all texts by "
                f"{percent(steady['to_all'].mean())} (Frobenius, mean over heads)."
            )
        signs = self.texts.drop_nulls("negative")
        if len(signs):
            share = (signs["least"] < -1e-9).mean()
            yield (
                f"Naim & Asher's projection has negative entries on {percent(share)} of the heads and texts "
                f"({percent(signs['negative'].mean())} of all entries, the least {signs['least'].min():.3f}); row "
                f"sums are kept to {signs['row_sum_error'].max():.1e}."
            )
        able = self.pairs.drop_nulls("disagree")
        if len(able):
            yield (
                f"Weights that are equivalent under one text are not so under another in "
                f"{percent(able['disagree'].mean())} of {len(able):,} cases; the other text's "
                f"output moves by {percent(able['change_second'].mean())}."
            )
        correlations = dict(self.correlations().select("norm", "within_spearman").iter_rows())
        if correlations:
            named = ", ".join(f"{label} {_number(correlations[name])}" for name, label in _NORM_NAMES.items())
            yield f"Rank correlation of norms with the change of the final hidden state, within heads: {named}."


_NORM_NAMES = {
    "structure": "‖·‖_S",
    "structure_effective": "‖·‖_S with W from effective attention",
    "one": "1-norm",
    "infinity": "∞-norm",
    "frobenius": "Frobenius",
}


def matrix_file(folder: Path) -> Path:
    """Return where a result folder keeps its matrices."""
    return folder / "matrices" / "structure.safetensors"


def _number(value: Any) -> str:
    return "undefined" if value is None else f"{value:.2f}"
