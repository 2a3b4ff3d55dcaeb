"""The tables of a structure analysis that are made of its sums, when all texts have gone by."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.patterns import PatternScore, pattern_of, pattern_scores
from identilens.measures.structure.representatives import Representatives
from identilens.measures.structure.subspace import Subspace, subspace_of
from identilens.measures.structure.weights import structure_weights
from identilens.models.layout import Site
from identilens.runs.matrices import Matrices
from identilens.runs.tables import Row, Tables, table_of
from identilens.studies.structure.maps import head_rows
from identilens.studies.structure.result import HEAD, Structure

Rows = Sequence[Mapping[str, Any]]


def frame(name: str, rows: Rows) -> pl.DataFrame:
    """Return rows as a table of the result; what is not defined (NaN) is null."""
    return table_of(Structure.schema[name], rows).fill_nan(None)


def spaces(sums: Matrices, key: str, site: Site, texts: int) -> tuple[Subspace, Subspace]:
    """Return R of a layer from projectors, and the spectrum of the values' energy in the same form."""
    d_model = site.fixed_projection.shape[-1]
    visibility, energy = (
        subspace_of(sums[f"{key}.{name}"], texts, d_model) for name in ("visibility", "energy")
    )
    return visibility, energy


def dimensions(space: Subspace, energy: Subspace) -> dict[str, Tensor]:
    """Return dim R and the dimensions of its weighted versions."""
    return {
        "dim_r": space.dimension,
        "dim_half": space.dimension_at(0.5),
        "dim_95": space.effective_dimension(),
        "energy_95": energy.effective_dimension(),
    }


@dataclass(frozen=True)
class Closing:
    """What the tables are made of: sums, layers by ``<kind>.layer<l>``, how many texts went by, and what makes W."""

    sums: Matrices
    sites: Mapping[str, Site]
    texts: int
    clusterings: Mapping[int, Representatives]
    clusters: int
    threshold: float

    def matrices(self) -> dict[str, Tensor]:
        """Return the matrices of the result in float32."""
        matrices: dict[str, Tensor] = {}
        for key in self.sites:
            matrices[f"{key}.raw"] = self.sums[f"{key}.clusters{self.clusters}"] / self.clusters
            matrices[f"{key}.effective"] = self.sums[f"{key}.effective"] / self.clusters
            for name in ("all_raw", "all_effective", "visibility"):
                matrices[f"{key}.{name}"] = self.sums[f"{key}.{name}"] / self.texts
        return {name: tensor.float() for name, tensor in matrices.items()}

    @cached_property
    def structures(self) -> dict[str, tuple[Float[Tensor, "head q k"], Float[Tensor, "head q k"]]]:
        """W of each layer, from raw and from effective attention."""
        # Sizes of effective weights may exceed 1 here and there; the threshold keeps its meaning.
        sums, clusters = self.sums, self.clusters
        return {
            key: (
                self._cut(sums[f"{key}.clusters{clusters}"] / clusters),
                self._cut(sums[f"{key}.effective"] / clusters),
            )
            for key in self.sites
        }

    def tables(
        self, growth: pl.DataFrame, special: Sequence[int], representatives: Mapping[int, str]
    ) -> Tables:
        """Return the tables by head, and those on the choice of representatives, of the largest cluster first.

        Args:
            growth: The dimensions of R by number of texts.
            special: Positions of special tokens.
            representatives: Tokens of each representative, by its text.
        """
        heads, spectrum, patterns = [], [], []
        # The first number of texts with the largest dimension comes last, and stays.
        ordered = growth.sort("dim_r", "texts", descending=[False, True])
        filled = {tuple(head): texts for *head, texts in ordered.select(*HEAD, "texts").iter_rows()}
        for key, site in self.sites.items():
            space, energy = spaces(self.sums, key, site, self.texts)
            indices = torch.arange(space.eigenvalues.shape[-1]).expand_as(space.eigenvalues)
            columns = {
                "index": indices,
                "visibility": space.eigenvalues,
                "energy": energy.eigenvalues,
            }
            spectrum += head_rows(key, columns)
            for row in self._heads(key, site, space, energy):
                where = {column: row[column] for column in HEAD}
                row["texts_to_fill"] = filled[tuple(where.values())]
                raw, effective = (one[row["head"]] for one in self.structures[key])
                for name, prefix, W in (("raw", "", raw), ("effective", "effective_", effective)):
                    scores = pattern_scores(W, special)
                    patterns += [{**where, "weights": name, **asdict(one)} for one in scores]
                    named = _named(W, scores)
                    row |= {f"{prefix}{column}": value for column, value in named.items()}
                heads.append(row)
        sizes = self.clusterings[self.clusters].sizes.tolist()
        chosen = [
            {"text": text, "cluster": cluster, "size": sizes[cluster], "tokens": names}
            for cluster, (text, names) in enumerate(representatives.items())
        ]
        clusters = [
            {"clusters": count, "silhouette": one.silhouette, "chosen": count == self.clusters}
            for count, one in self.clusterings.items()
        ]
        return {
            "table": frame("table", heads),
            "spectrum": pl.DataFrame(spectrum)
            .explode("index", "visibility", "energy")
            .fill_nan(None),
            "patterns": frame("patterns", patterns),
            "clusters": frame("clusters", clusters),
            "representatives": frame("representatives", chosen),
            "stability": frame("stability", list(self._stability())),
        }

    def _heads(self, key: str, site: Site, space: Subspace, energy: Subspace) -> list[Row]:
        raw, effective = self.structures[key]
        return head_rows(
            key,
            {
                "length": space.eigenvalues.shape[-1],
                "d_v": site.value_bias.shape[-1],
                "texts": self.texts,
                "representatives": self.clusters,
                "threshold": self.threshold,
                **dimensions(space, energy),
                "mean_rank": space.eigenvalues.sum(-1),
                "raw_to_effective": _relative(effective, raw),
            },
        )

    def _stability(self) -> Iterator[Row]:
        """Yield how far W of k representatives is from that of the next k and of all texts."""
        ladder = sorted(self.clusterings)
        for key in self.sites:
            means = {one: self.sums[f"{key}.clusters{one}"] / one for one in ladder}
            whole = self.sums[f"{key}.all_raw"] / self.texts
            cut = {one: self._cut(mean) for one, mean in means.items()}
            size = whole.square().sum((-2, -1))
            spread = (self.sums[f"{key}.squares"] - self.texts * size).clamp_min(0.0)
            variance = spread / (self.texts - 1)
            for one, following in zip(ladder, [*ladder[1:], None], strict=True):
                columns = {
                    "clusters": one,
                    "to_all": _relative(cut[one], self._cut(whole)),
                    "to_next": following and _relative(cut[one], cut[following]),
                    "mean_to_all": _relative(means[one], whole),
                    # The variance of a mean of k of N texts without putting back is s²/k · (1 − k/N).
                    "random_to_all": (variance / one * (1 - one / self.texts) / size).sqrt(),
                }
                yield from head_rows(key, columns)

    def _cut(self, mean: Float[Tensor, "head q k"]) -> Float[Tensor, "head q k"]:
        return structure_weights(mean, self.threshold)


def _named(structure: Float[Tensor, "q k"], scores: Sequence[PatternScore]) -> dict[str, Any]:
    """Return the pattern of a structure by name, its score and place; "empty" where most rows have nothing left."""
    best, empty = pattern_of(scores), int((structure.sum(-1) == 0).sum())
    row = {
        "empty_rows": empty,
        "pattern": "mixed",
        "score": max(one.score for one in scores),
        "place": None,
    }
    if 2 * empty > len(structure):
        return row | {"pattern": "empty"}
    return row | asdict(best) if best else row


def _relative(
    weights: Float[Tensor, "head q k"], reference: Float[Tensor, "head q k"]
) -> Float[Tensor, " head"]:
    """Return ‖found − wanted‖_F / ‖wanted‖_F, NaN where a structure is measured by one with nothing left in it."""
    size, apart = torch.linalg.matrix_norm(reference), torch.linalg.matrix_norm(weights - reference)
    return torch.where(size > 0, apart / size, torch.where(apart > 0, torch.nan, 0.0))
