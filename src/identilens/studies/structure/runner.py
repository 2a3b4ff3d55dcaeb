"""The parts of a structure analysis: two passes over the texts, perturbed representatives, and the closing tables."""

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from identilens.measures.structure.circularity import circularity
from identilens.measures.structure.classes import TOLERANCE
from identilens.measures.structure.efficient import efficient_attention
from identilens.measures.structure.representatives import Representatives, best_clusters, choose_clusters
from identilens.measures.structure.subspace import Subspace, against_subspace, subspace_of
from identilens.measures.structure.weights import check_threshold, structure_weights
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.runs.folder import RunFolder
from identilens.runs.study import Tables
from identilens.studies.perturbed.put_back import perturbation_rows
from identilens.studies.structure import closing
from identilens.studies.structure.closing import Rows
from identilens.studies.structure.lengths import special_positions
from identilens.studies.structure.result import Structure
from identilens.studies.structure.settings import StructureSettings
from identilens.studies.structure.state import LayerView, State, TextView, text_views

PART = 32
"""Texts in one part of a folder run: what an interruption can cost. Even, so that pairs of texts share a part."""
VISIBLE_SHARE = 0.5
"""Share of the texts in which the weighted R's directions are visible."""


class Runner:
    """Runs one part after the other; what parts share is in `State`, which is kept on disk between them.

    Attributes:
        state: The sums so far.
        special: Positions of special tokens in every text.
    """

    def __init__(self, lens: Lens, items: list[Item], settings: StructureSettings) -> None:
        self.lens, self.items, self.settings = lens, items, settings
        self.folder: Path | None = None
        self.state = State()
        self.special = special_positions(lens, items)
        drawn = np.random.default_rng(settings.seed).permutation(len(items))[: settings.pool]
        self._pool = sorted(int(text) for text in drawn)
        self._chunks = [range(start, min(start + PART, len(items))) for start in range(0, len(items), PART)]
        self._pool_rows = {text: row for row, text in enumerate(self._pool)}

    @property
    def sizes(self) -> list[int]:
        """Steps in each part."""
        passes = [len(chunk) for chunk in self._chunks]
        return [*passes, *passes, *([1] * self.settings.perturbed), 0]

    def stage(self, part: int) -> str:
        """Return what is done in a part, in words."""
        count = len(self._chunks)
        if part < count:
            return "first pass: R and representatives"
        return "second pass: texts against R" if part < 2 * count else "perturbed weights in the model"

    def begin(self, folder: RunFolder | None) -> None:
        """Take up the state that was kept after the last whole part."""
        if folder is None:
            return
        self.folder = folder.path
        done = sum(folder.has(part) for part in range(len(self.sizes)))
        if done:
            self.state.load(self.folder, done - 1)

    def run(self, part: int) -> Tables:
        """Return the tables of one part, empty ones where it has nothing for them, and keep the state on disk."""
        count = len(self._chunks)
        if part < count:
            tables = self._first_pass(self._chunks[part])
        elif part < 2 * count:
            tables = self._second_pass(self._chunks[part - count])
        elif part < len(self.sizes) - 1:
            tables = self._perturbed(part - 2 * count)
        else:
            tables = self._closing()
        if self.folder is not None:
            self.state.save(self.folder, part)
        return {name: tables.get(name, closing.frame(name, [])) for name in Structure.schema}

    def matrices(self) -> dict[str, Tensor]:
        """Return the means over representatives and over all texts."""
        return closing.mean_matrices(self.state.sums, self.chosen, len(self.items))

    @cached_property
    def clusterings(self) -> dict[int, Representatives]:
        """Clusterings of the pool, by number of clusters."""
        return choose_clusters(self.state.sums["embeddings"].numpy(), self.settings.clusters, self.settings.seed)

    @cached_property
    def chosen(self) -> int:
        """The number of clusters whose representatives make W."""
        return self.settings.clusters or best_clusters(self.clusterings)

    @cached_property
    def threshold(self) -> float:
        """Threshold l in units of the mean weight."""
        given = self.settings.threshold
        if given is None:
            return 2 / self.settings.length
        check_threshold(given, self.chosen, self.settings.scale)
        return given / self.chosen if self.settings.scale == "sum" else given

    def members(self, clusters: int) -> list[int]:
        """Return the texts nearest to the centroids, largest cluster first."""
        return [self._pool[row] for row in self.clusterings[clusters].members]

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
        for view in text_views(self.lens, self.items, list(texts)):
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

    def _growth(self, texts: int) -> Rows:
        """Return the rows of dim R after so many texts, and remember when it last grew."""
        rows = closing.growth_rows(self.state.sums, self._widths, texts)
        for key in self._widths:
            grown = torch.tensor([row["dim_r"] for row in rows if closing.layer_key(row) == key], dtype=torch.float64)
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
        for view in text_views(self.lens, self.items, list(texts)):
            for layer in view.layers:
                for clusters in (one for one, members in wanted.items() if view.text in members):
                    self.state.add(f"{layer.key}.clusters{clusters}", layer.weights)
                    if clusters == self.chosen:
                        self.state.add(f"{layer.key}.effective", layer.effective().abs())
                rows += self._text_rows(view.text, layer)
            if view.text % 2 and view.text // 2 < self.settings.compared_pairs and before is not None:
                pairs += self._pair_rows(before, view)
            before = view
        return {"texts": closing.frame("texts", rows), "pairs": closing.frame("pairs", pairs)}

    def _text_rows(self, text: int, layer: LayerView) -> Rows:
        _, whole, half = self.subspaces[layer.key]
        inside = against_subspace(layer.weights, layer.column, whole)
        weighted = against_subspace(layer.weights, layer.column, half)
        signs = None
        if layer.visible is None:
            signs = efficient_attention(layer.weights, layer.projected)
        return [
            {
                "text": text,
                **closing.address(layer.key, head),
                "rank": int(layer.rank[head]),
                "ignored_dimension": float(inside.ignored_dimension[head]),
                "ignored": float(inside.ignored[head]),
                "outside": float(inside.outside[head]),
                "outside_half": float(weighted.outside[head]),
                "negative": None if signs is None else float(signs.negative[head]),
                "least": None if signs is None else float(signs.least[head]),
                "row_sum_error": None if signs is None else float(signs.row_sum_error[head]),
            }
            for head in range(len(layer.weights))
        ]

    def _pair_rows(self, first: TextView, second: TextView) -> Rows:
        rows = []
        for one, other in zip(first.layers, second.layers, strict=True):
            if one.visible is not None:
                continue
            seed = self.settings.seed + first.text
            measured = circularity(one.weights, one.projected, other.projected, seed=seed)
            disagree = measured.disagree(TOLERANCE)
            rows += [
                {
                    "first_text": first.text,
                    "second_text": second.text,
                    **closing.address(one.key, head),
                    "freedom": int(measured.freedom[head]),
                    "overlap": float(measured.overlap[head]),
                    "chance": float(measured.chance[head]),
                    "moved": float(measured.moved[head]),
                    "change_first": float(measured.first[head]),
                    "change_second": float(measured.second[head]),
                    "disagree": bool(disagree[head]) if measured.able[head] else None,
                }
                for head in range(len(one.weights))
            ]
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
        rows = perturbation_rows(self.lens, self.items[text], text, structures, self.settings.seed)
        return {"perturbations": closing.frame("perturbations", rows)}

    def _structure(self, summed: Tensor) -> Tensor:
        return structure_weights(summed / self.chosen, self.threshold, penalty=self.settings.penalty)

    def _closing(self) -> Tables:
        names = [" ".join(next(iter(self.items[text].tokens.values()))) for text in self.members(self.chosen)]
        return closing.tables(
            self.state.sums,
            self.clusterings,
            closing.Choice(self.chosen, self.threshold, self.settings.penalty, self.members(self.chosen), names),
            [
                (key, site.value_bias.shape[-1])
                for key, site in zip(self._widths, self.lens.sites(self.items[0]), strict=True)
            ],
            self._widths,
            len(self.items),
            self.special,
        )


def _is_mark(texts: int) -> bool:
    """Return whether dim R is noted after so many texts: each of the first eight, then two for each doubling."""
    if texts <= 8:
        return True
    power = texts.bit_length() - 1
    return texts in (1 << power, 3 << (power - 1))
