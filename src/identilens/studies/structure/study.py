"""What the attention of a corpus has in common, head by head (structure2025)."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import SettingError
from identilens.linalg import FLOAT32_EPS
from identilens.measures.structure.circularity import TOLERANCE, circularity
from identilens.measures.structure.efficient import efficient_attention
from identilens.measures.structure.representatives import (
    Representatives,
    best_clusters,
    choose_clusters,
)
from identilens.measures.structure.subspace import Subspace, against_subspace, subspace_of
from identilens.measures.structure.weights import structure_weights
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.models.token_names import joined
from identilens.runs.files import Manifest, write_tensors
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.reading import read_tensors
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Tables
from identilens.studies.heads import filled, shaped
from identilens.studies.structure.perturbation import perturbation_rows
from identilens.studies.structure.result import Structure
from identilens.studies.structure.settings import StructureSettings
from identilens.studies.structure.texts import (
    LayerView,
    special_positions,
    text_views,
    texts_of_length,
)

Table = dict[str, Any]
"""Columns of a table: values of all rows, or one value for all of them."""

Parts = Mapping[str, Sequence[Table]]
"""Such columns by the name of the table."""

Maps = Float[Tensor, "head q k"]


def sums_file(folder: Path, part: int) -> Path:
    """Return the file of the sums as they are after a part of a run."""
    return folder / "parts" / f"state-{part:06d}.safetensors"


PART = 32
"""Texts in one part of a folder run: what an interruption can cost. Even, so that pairs of texts share a part."""
VISIBLE_SHARE = 0.5
"""Share of the texts in which the weighted R's directions are visible."""


class StructureStudy(Study[StructureSettings, Structure]):
    """Compute for every head what the attention of texts of one length shares: W, the subspace R, norms.

    Two passes over the texts; only sums are stored (structure2025, II.B and III). The first pass sums the Gram matrix
    of R (Eq. 6) and the raw and effective weights, and collects the embeddings from which representatives are chosen
    (III.B.1). The second pass compares each text with R, and sums the representatives' weights to W (Eq. 7, 8). With
    more texts, memory grows by the embeddings of at most ``pool`` of them.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.

    Raises:
        InputError: For too few texts of the length, or options outside their range.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If weights or values are NaN or infinite, naming where.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> structure = idl.structure(lens, idl.examples(), length=36, clusters=2, perturbed=0)
        >>> structure
        Structure: 6 texts of 36 tokens: R, the ...
    """

    name = "structure"
    unit = "steps"
    alone = "each part adds to the sums of the previous part"
    settings_type = StructureSettings
    result_type = Structure

    def __init__(self, lens: Lens, texts: Any, settings: StructureSettings) -> None:
        self.lens, self.settings = lens, settings
        self.items = texts_of_length(lens, texts, settings.length)
        most = min(len(self.items), settings.pool)
        if settings.clusters is not None and settings.clusters > most:
            raise SettingError("clusters", f"of at most {most}, one per text", settings.clusters)
        self.sums: dict[str, Tensor] = {}
        """``<kind>.layer<l>.<name>``: float64 sums [head, n, n]; ``embeddings``: the pool's, one row per text."""
        self.special = special_positions(lens, self.items)
        drawn = np.random.default_rng(settings.seed).permutation(len(self.items))[: settings.pool]
        self._pool = {text: row for row, text in enumerate(sorted(drawn.tolist()))}
        self._sites = {f"{site.kind}.layer{site.layer}": site for site in lens.sites(self.items[0])}
        self.threshold = 2 / settings.length if settings.threshold is None else settings.threshold
        texts = range(len(self.items))
        chunks = [texts[start : start + PART] for start in texts[::PART]]
        self.parts = [
            *(("first pass: R and representatives", self._first_pass, chunk) for chunk in chunks),
            *(("second pass: texts against R", self._second_pass, chunk) for chunk in chunks),
            *(
                ("perturbed weights in the model", self._perturbed, range(number, number + 1))
                for number in range(settings.perturbed)
            ),
        ]

    def identity(self) -> Identity:
        """Return the model and the texts, with the threshold that is used."""
        tolerance = f"max(n, d_model) * {FLOAT32_EPS} * largest singular value"
        facts = {
            "special_positions": self.special,
            "rank_tolerance": tolerance,
            "threshold": self.threshold,
        }
        return Identity(self.lens.facts, self.items.digests, facts)

    def sizes(self) -> Sequence[int]:
        """Return the steps of each part: two for each text, one for each text that is perturbed."""
        return [len(texts) for *_, texts in self.parts]

    def begin(self, folder: RunFolder | None) -> None:
        """Read the sums that an interrupted run has saved."""
        super().begin(folder)
        if folder is not None:
            done = sum(map(folder.has, range(len(self.parts))))
            if done:
                self.sums = read_tensors(sums_file(folder.path, done - 1))

    def run(self, part: int) -> Output:
        """Return the tables of one part, empty ones where it has nothing for them, and keep the sums on disk."""
        note, tables_of, texts = self.parts[part]
        self.tell(note)
        tables = filled(Structure.schema, tables_of(texts))
        if self.folder is not None:
            write_tensors(sums_file(self.folder, part), self.sums)
            # The sums of the part before stay until the next.
            old = sums_file(self.folder, part - 2).relative_to(self.folder)
            Manifest(self.folder).remove(old.as_posix())
        return Output(tables)

    def finish(self, tables: Tables) -> Output:
        """Return all tables, with the means over representatives and over all texts."""
        clusters, members = self.clusterings, self.members(self.chosen)
        parts = {
            "table": self._heads(),
            "clusters": [
                {
                    "clusters": [*clusters],
                    "silhouette": [groups.silhouette for groups in clusters.values()],
                    "chosen": [count == self.chosen for count in clusters],
                }
            ],
            "representatives": [
                {
                    "text": members,
                    "cluster": range(len(members)),
                    "size": clusters[self.chosen].sizes,
                    "tokens": [
                        joined(next(iter(self.items[text].tokens.values()))) for text in members
                    ],
                }
            ],
            "stability": self._stability(),
        }
        closed = {name: shaped(Structure.schema[name], part) for name, part in parts.items()}
        return Output({**tables, **closed}, self._matrices())

    @cached_property
    def clusterings(self) -> dict[int, Representatives]:
        """Clusterings of the pool, by number of clusters."""
        return choose_clusters(
            self.sums["embeddings"].numpy(), self.settings.clusters, self.settings.seed
        )

    @cached_property
    def chosen(self) -> int:
        """The number of clusters whose representatives make W."""
        return self.settings.clusters or best_clusters(self.clusterings)

    @cached_property
    def structures(self) -> dict[str, tuple[Maps, Maps]]:
        """W of each layer, from raw and from effective attention."""
        # Sizes of effective weights may exceed 1 here and there; the threshold keeps its meaning.
        names = f"clusters{self.chosen}", "effective"
        return {
            key: tuple(self._cut(key, name, self.chosen) for name in names)  # pyright: ignore
            for key in self._sites
        }

    def _cut(self, layer: str, name: str, count: int) -> Maps:
        """Return W of the mean over so many texts."""
        return structure_weights(self.sums[f"{layer}.{name}"] / count, self.threshold)

    def _space(self, layer: str, texts: int) -> Subspace:
        """Return R of a layer after so many texts."""
        d_model = self._sites[layer].fixed_projection.shape[-1]
        return subspace_of(self.sums[f"{layer}.visibility"], texts, d_model)

    def _matrices(self) -> dict[str, Tensor]:
        """Return the means of each layer in float32: over representatives, and over all texts."""
        chosen, texts = self.chosen, len(self.items)
        means = {"raw": (f"clusters{chosen}", chosen), "effective": ("effective", chosen)}
        means |= {name: (name, texts) for name in ("all_raw", "all_effective", "visibility")}
        return {
            f"{key}.{name}": (self.sums[f"{key}.{summed}"] / count).float()
            for key in self._sites
            for name, (summed, count) in means.items()
        }

    def _heads(self) -> Iterator[Table]:
        """Yield the columns of the main table, layer by layer."""
        for key, site in self._sites.items():
            maps, space = self.structures[key], self._space(key, len(self.items))
            columns = {
                "length": self.settings.length,
                "d_v": len(site.zeros),
                "texts": len(self.items),
                "representatives": self.chosen,
                "threshold": self.threshold,
                **dimensions(space),
                "mean_rank": space.eigenvalues.sum(-1),
                "raw_to_effective": _relative(maps[1], maps[0]),
            }
            for name, of_heads in zip(("empty_rows", "effective_empty_rows"), maps, strict=True):
                columns[name] = (of_heads.sum(-1) == 0).sum(-1)
            yield _of_heads(site, columns)

    def _stability(self) -> Iterator[Table]:
        """Yield how far W of k representatives is from that of the next k and of all texts."""
        ladder = sorted(self.clusterings)
        for key, site in self._sites.items():
            full = self._cut(key, "all_raw", len(self.items))
            cut = {count: self._cut(key, f"clusters{count}", count) for count in ladder}
            for count, following in zip(ladder, [*ladder[1:], None], strict=True):
                columns = {
                    "clusters": count,
                    "to_all": _relative(cut[count], full),
                    "to_next": following and _relative(cut[count], cut[following]),
                }
                yield _of_heads(site, columns)

    def add(self, layer: str, **tensors: Tensor) -> None:
        """Add to some sums of a layer, in double precision."""
        for name, tensor in tensors.items():
            key = f"{layer}.{name}"
            self.sums[key] = self.sums.get(key, 0.0) + tensor.double()

    def members(self, clusters: int) -> list[int]:
        """Return the texts nearest to the centroids, largest cluster first."""
        pool = list(self._pool)
        return [pool[row] for row in self.clusterings[clusters].members]

    @cached_property
    def _projectors(self) -> dict[str, tuple[Tensor, Tensor]]:
        """The projectors on R of each layer, and on its weighted version."""
        spaces = {key: self._space(key, len(self.items)) for key in self._sites}
        return {
            key: (space.projector(), space.projector(VISIBLE_SHARE))
            for key, space in spaces.items()
        }

    def _first_pass(self, texts: range) -> Parts:
        growth = []
        for text, layers, embedding in text_views(self.lens, self.items, texts):
            if text in self._pool:
                if "embeddings" not in self.sums:
                    shape = len(self._pool), len(embedding)
                    self.sums["embeddings"] = embedding.new_zeros(shape)
                self.sums["embeddings"][self._pool[text]] = embedding
            for layer in layers:
                self.add(
                    layer.key,
                    visibility=layer.column,
                    all_raw=layer.weights,
                    all_effective=layer.effective.abs(),
                )
            done = text + 1
            if _is_mark(done) or done == len(self.items):
                for key, site in self._sites.items():
                    measured = dimensions(self._space(key, done))
                    growth.append(_of_heads(site, {"texts": done, **measured}))
        return {"growth": growth}

    def _second_pass(self, texts: range) -> Parts:
        members = {clusters: self.members(clusters) for clusters in self.clusterings}
        rows, pairs = [], []
        before: Sequence[LayerView] = ()
        for text, layers, _ in text_views(self.lens, self.items, texts):
            for layer in layers:
                for clusters in (count for count, chosen in members.items() if text in chosen):
                    self.add(layer.key, **{f"clusters{clusters}": layer.weights})
                    if clusters == self.chosen:
                        self.add(layer.key, effective=layer.effective.abs())
                inside, half = (
                    against_subspace(layer.weights, layer.column, kept)
                    for kept in self._projectors[layer.key]
                )
                signs = {}
                if layer.visible is None:
                    signs = {**vars(efficient_attention(layer.weights, layer.projected))}
                    del signs["efficient"]
                columns = {
                    **vars(inside),
                    "text": text,
                    "rank": layer.projected.factor.rank,
                    "outside_half": half.outside,
                    **signs,
                }
                rows.append(_of_heads(self._sites[layer.key], columns))
            if text % 2 and text // 2 < self.settings.compared_pairs:
                pairs += [
                    self._pair(text - 1, view, other)
                    for view, other in zip(before, layers, strict=True)
                    if view.visible is None
                ]
            before = layers
        return {"texts": rows, "pairs": pairs}

    def _pair(self, first: int, view: LayerView, other: LayerView) -> Table:
        """Return what a second text makes of weights that are equivalent under the first."""
        circle = circularity(
            view.weights, view.projected, other.projected, seed=self.settings.seed + first
        )
        disagree = zip(circle.able.tolist(), circle.disagree(TOLERANCE).tolist(), strict=True)
        columns = {
            "first_text": first,
            "second_text": first + 1,
            **vars(circle),
            "disagree": [apart if able else None for able, apart in disagree],
        }
        return _of_heads(self._sites[view.key], columns)

    def _perturbed(self, places: range) -> Mapping[str, Sequence[Any]]:
        rows = [
            perturbation_rows(
                self.lens, self.items[text], text, self.structures, self.settings.seed
            )
            for text in self.members(self.chosen)[places.start : places.stop]
        ]
        return {"perturbations": rows}


def _is_mark(texts: int) -> bool:
    """Return whether dim R is noted after so many texts: each of the first eight, then two for each doubling."""
    power = texts.bit_length() - 1
    return texts <= 8 or texts in (1 << power, 3 << (power - 1))


def dimensions(space: Subspace) -> dict[str, Tensor]:
    """Return dim R and the dimensions of its weighted versions."""
    return {
        "dim_r": space.dimension,
        "dim_half": space.dimension_at(0.5),
        "dim_95": space.effective_dimension(),
    }


def _of_heads(site: Site, columns: Mapping[str, Any]) -> Table:
    """Return the columns of rows of the heads of a layer."""
    near = {
        name: column.cpu() if isinstance(column, Tensor) else column
        for name, column in columns.items()
    }
    return {"kind": site.kind, "layer": site.layer, "head": range(site.heads), **near}


def _relative(weights: Maps, reference: Maps) -> Float[Tensor, " head"]:
    """Return ‖found − wanted‖_F / ‖wanted‖_F, NaN where a structure is measured by one with nothing left in it."""
    size, apart = torch.linalg.matrix_norm(reference), torch.linalg.matrix_norm(weights - reference)
    return torch.where(size > 0, apart / size, torch.where(apart > 0, torch.nan, 0.0))


structure = study_function(StructureStudy, "structure")
