"""The parts of a structure analysis: two passes over the texts, perturbed representatives, and the closing tables."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import polars as pl
import torch
from torch import Tensor

from identilens.measures.structure.circularity import circularity
from identilens.measures.structure.classes import TOLERANCE
from identilens.measures.structure.efficient import efficient_attention
from identilens.measures.structure.representatives import Representatives, best_clusters, choose_clusters
from identilens.measures.structure.subspace import Subspace, against_subspace, subspace_of
from identilens.measures.structure.weights import Scale, check_threshold, structure_weights
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.results.files import write_tensors
from identilens.results.parts import Tables
from identilens.results.structure import TABLES, matrix_file
from identilens.studies.structure import closing
from identilens.studies.structure.perturbation_study import perturbation_rows
from identilens.studies.structure.state import LayerView, State, TextView, views

PART = 32
"""Texts in one part of a folder run: what an interruption can cost. Even, so that pairs of texts share a part."""
VISIBLE_SHARE = 0.5
"""Share of the texts in which the weighted R's directions are visible."""


@dataclass(frozen=True)
class Plan:
    """What is done with the texts; see `identilens.structure.structure`.

    Attributes:
        length: n.
        threshold: l, None for 2/n on the mean.
        scale: Units of the threshold.
        penalty: h(x) = penalty · x.
        clusters: Number of representatives, None to choose by silhouette.
        pool: Numbers of the texts among which they are sought.
        pairs: Pairs of texts to compare.
        perturbed: Representatives to perturb.
        seed: Of clustering and perturbations.
        special: Positions of special tokens in every text.
    """

    length: int
    threshold: float | None
    scale: Scale
    penalty: float
    clusters: int | None
    pool: tuple[int, ...]
    pairs: int
    perturbed: int
    seed: int
    special: tuple[int, ...]


class Runner:
    """Runs one part after the other; what parts share is in `State`, which is kept on disk between them."""

    def __init__(self, lens: Lens, items: list[Item], plan: Plan, folder: Path | None) -> None:
        self.lens, self.items, self.plan, self.folder = lens, items, plan, folder
        self.state = State()
        self._part = -1
        self._chunks = [range(start, min(start + PART, len(items))) for start in range(0, len(items), PART)]
        self._pool_rows = {text: row for row, text in enumerate(plan.pool)}

    @property
    def sizes(self) -> list[int]:
        """Steps in each part."""
        passes = [len(chunk) for chunk in self._chunks]
        return [*passes, *passes, *([1] * self.plan.perturbed), 0]

    def run(self, part: int) -> Tables:
        """Return the tables of one part, empty ones where it has nothing for them."""
        if part and not self.state.sums and self.folder is not None:
            self.state.load(self.folder, part - 1)
        self._part = part
        count = len(self._chunks)
        if part < count:
            tables = self._first_pass(self._chunks[part])
        elif part < 2 * count:
            tables = self._second_pass(self._chunks[part - count])
        elif part < len(self.sizes) - 1:
            tables = self._perturbed(part - 2 * count)
        else:
            tables = self._closing()
        return {name: tables.get(name, pl.DataFrame(schema=columns)) for name, columns in TABLES.items()}

    def keep(self) -> None:
        """Write what must outlive the process, before the part itself is written."""
        folder = self.folder or Path()
        self.state.save(folder, self._part)
        if self._part == len(self.sizes) - 1:
            write_tensors(matrix_file(folder), self.matrices())

    def matrices(self) -> dict[str, Tensor]:
        """Return the means over representatives and over all texts."""
        return closing.mean_matrices(self.state.sums, self.chosen, len(self.items))

    @cached_property
    def clusterings(self) -> dict[int, Representatives]:
        """Clusterings of the pool, by number of clusters."""
        return choose_clusters(self.state.sums["embeddings"].numpy(), self.plan.clusters, self.plan.seed)

    @cached_property
    def chosen(self) -> int:
        """The number of clusters whose representatives make W."""
        return self.plan.clusters or best_clusters(self.clusterings)

    @cached_property
    def threshold(self) -> float:
        """Threshold l in units of the mean weight."""
        given = self.plan.threshold
        if given is None:
            return 2 / self.plan.length
        check_threshold(given, self.chosen, self.plan.scale)
        return given / self.chosen if self.plan.scale == "sum" else given

    def members(self, clusters: int) -> list[int]:
        """Return the texts nearest to the centroids, largest cluster first."""
        return [self.plan.pool[row] for row in self.clusterings[clusters].members]

    @cached_property
    def subspaces(self) -> dict[str, tuple[Subspace, Tensor, Tensor]]:
        """R of each layer with the projectors on it and on its weighted version."""
        found = {}
        for key, d_model in self._widths.items():
            space = subspace_of(self.state.sums[f"{key}.visibility"], len(self.items), d_model)
            found[key] = space, space.projector(), space.projector(VISIBLE_SHARE)
        return found

    @cached_property
    def _widths(self) -> dict[str, int]:
        sites = self.lens.sites(self.items[0])
        return {f"{site.kind}.layer{site.layer}": site.output_projection.shape[-1] for site in sites}

    def _first_pass(self, texts: range) -> Tables:
        rows = []
        for view in views(self.lens, self.items, list(texts)):
            if view.text in self._pool_rows:
                self.state.put_row(self._pool_rows[view.text], len(self._pool_rows), view.embedding)
            for layer in view.layers:
                self.state.add(f"{layer.key}.visibility", layer.column)
                self.state.add(f"{layer.key}.energy", layer.energy)
                self.state.add(f"{layer.key}.all_raw", layer.weights)
                self.state.add(f"{layer.key}.squares", layer.weights.square().sum((-2, -1)))
                self.state.add(f"{layer.key}.all_effective", layer.effective().abs())
            if _is_mark(view.text + 1) or view.text + 1 == len(self.items):
                rows += self._growth(view.text + 1)
        return {"growth": closing.frame("growth", rows)}

    def _growth(self, texts: int) -> list[tuple]:
        """Return the rows of dim R after so many texts, and remember when it last grew."""
        rows = closing.growth_rows(self.state.sums, self._widths, texts)
        for key in self._widths:
            grown = torch.tensor([row[4] for row in rows if closing.layer_key(row) == key], dtype=torch.float64)
            held = self.state.sums.get(f"{key}.grown", torch.zeros(len(grown), 2, dtype=torch.float64))
            now = torch.stack([grown, torch.full_like(grown, texts)], 1)
            self.state.sums[f"{key}.grown"] = torch.where((grown > held[:, 0])[:, None], now, held)
        return rows

    def _second_pass(self, texts: range) -> Tables:
        if texts.start == 0:
            _ = self.threshold  # A threshold outside its range is told before the pass, not after it.
        wanted = {clusters: set(self.members(clusters)) for clusters in self.clusterings}
        rows, pairs = [], []
        before: TextView | None = None
        for view in views(self.lens, self.items, list(texts)):
            for layer in view.layers:
                for clusters in (one for one, members in wanted.items() if view.text in members):
                    self.state.add(f"{layer.key}.clusters{clusters}", layer.weights)
                    if clusters == self.chosen:
                        self.state.add(f"{layer.key}.effective", layer.effective().abs())
                rows += self._text_rows(view.text, layer)
            if view.text % 2 and view.text // 2 < self.plan.pairs and before is not None:
                pairs += self._pair_rows(before, view)
            before = view
        return {"texts": closing.frame("texts", rows), "pairs": closing.frame("pairs", pairs)}

    def _text_rows(self, text: int, layer: LayerView) -> list[tuple]:
        _, whole, half = self.subspaces[layer.key]
        found = against_subspace(layer.weights, layer.column, whole)
        weighted = against_subspace(layer.weights, layer.column, half)
        heads = len(layer.weights)
        signs: list[tuple] = [(None, None, None)] * heads
        if layer.visible is None:
            one = efficient_attention(layer.weights, layer.projected)
            signs = list(zip(*(part.tolist() for part in (one.negative, one.least, one.row_sum_error)), strict=True))
        measures = (layer.rank, found.ignored_dimension, found.ignored, found.outside, weighted.outside)
        return [
            (text, layer.kind, layer.layer, head, *(float(measure[head]) for measure in measures), *signs[head])
            for head in range(heads)
        ]

    def _pair_rows(self, first: TextView, second: TextView) -> list[tuple]:
        rows = []
        for one, other in zip(first.layers, second.layers, strict=True):
            if one.visible is not None:
                continue
            found = circularity(one.weights, one.projected, other.projected, seed=self.plan.seed + first.text)
            disagree = found.disagree(TOLERANCE)
            measures = (found.freedom, found.overlap, found.chance, found.moved, found.first, found.second)
            for head in range(len(one.weights)):
                numbers = (float(measure[head]) for measure in measures)
                where = (first.text, second.text, one.kind, one.layer, head)
                rows.append((*where, *numbers, bool(disagree[head]) if found.able[head] else None))
        return rows

    def _perturbed(self, place: int) -> Tables:
        members = self.members(self.chosen)
        if place >= len(members):
            return {}
        structures = {
            key: (
                self._structure(self.state.sums[f"{key}.clusters{self.chosen}"]),
                self._structure(self.state.sums[f"{key}.effective"]),
            )
            for key in self._widths
        }
        text = members[place]
        rows = perturbation_rows(self.lens, self.items[text], text, structures, self.plan.seed)
        return {"perturbations": closing.frame("perturbations", rows)}

    def _structure(self, summed: Tensor) -> Tensor:
        return structure_weights(summed / self.chosen, self.threshold, penalty=self.plan.penalty)

    def _closing(self) -> Tables:
        names = [" ".join(next(iter(self.items[text].tokens.values()))) for text in self.members(self.chosen)]
        return closing.tables(
            self.state.sums,
            self.clusterings,
            closing.Choice(self.chosen, self.threshold, self.plan.penalty, self.members(self.chosen), names),
            [
                (key, site.value_bias.shape[-1])
                for key, site in zip(self._widths, self.lens.sites(self.items[0]), strict=True)
            ],
            self._widths,
            len(self.items),
            self.plan.special,
        )


def _is_mark(texts: int) -> bool:
    """Return whether dim R is noted after so many texts: each of the first eight, then two for each doubling."""
    if texts <= 8:
        return True
    power = texts.bit_length() - 1
    return texts in (1 << power, 3 << (power - 1))
