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


def space_of(sums: Matrices, key: str, site: Site, texts: int) -> Subspace:
    """Return R of a layer."""
    return subspace_of(sums[f"{key}.visibility"], texts, site.fixed_projection.shape[-1])


def dimensions(space: Subspace) -> dict[str, Tensor]:
    """Return dim R and the dimensions of its weighted versions."""
    return {
        "dim_r": space.dimension,
        "dim_half": space.dimension_at(0.5),
        "dim_95": space.effective_dimension(),
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
        heads = []
        # The first number of texts with the largest dimension comes last, and stays.
        ordered = growth.sort("dim_r", "texts", descending=[False, True])
        filled = {tuple(head): texts for *head, texts in ordered.select(*HEAD, "texts").iter_rows()}
        for key, site in self.sites.items():
            for row in self._heads(key, site):
                row["texts_to_fill"] = filled[tuple(row[column] for column in HEAD)]
                for prefix, of_heads in zip(("", "effective_"), self.structures[key], strict=True):
                    W = of_heads[row["head"]]
                    named = _named(W, pattern_scores(W, special))
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
            "clusters": frame("clusters", clusters),
            "representatives": frame("representatives", chosen),
            "stability": frame("stability", list(self._stability())),
        }

    def _heads(self, key: str, site: Site) -> list[Row]:
        raw, effective = self.structures[key]
        space = space_of(self.sums, key, site, self.texts)
        return head_rows(
            key,
            {
                "length": space.eigenvalues.shape[-1],
                "d_v": site.value_bias.shape[-1],
                "texts": self.texts,
                "representatives": self.clusters,
                "threshold": self.threshold,
                **dimensions(space),
                "mean_rank": space.eigenvalues.sum(-1),
                "raw_to_effective": _relative(effective, raw),
            },
        )

    def _stability(self) -> Iterator[Row]:
        """Yield how far W of k representatives is from that of the next k and of all texts."""
        ladder = sorted(self.clusterings)
        for key in self.sites:
            whole = self._cut(self.sums[f"{key}.all_raw"] / self.texts)
            cut = {one: self._cut(self.sums[f"{key}.clusters{one}"] / one) for one in ladder}
            for one, following in zip(ladder, [*ladder[1:], None], strict=True):
                columns = {
                    "clusters": one,
                    "to_all": _relative(cut[one], whole),
                    "to_next": following and _relative(cut[one], cut[following]),
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
