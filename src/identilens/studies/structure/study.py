"""What the attention of a corpus has in common, head by head (structure2025)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError, NumericalError, SettingError
from identilens.linalg import FLOAT32_EPS, OutputFactor, ProjectedValues
from identilens.measures.structure.circularity import TOLERANCE, circularity
from identilens.measures.structure.efficient import efficient_attention
from identilens.measures.structure.representatives import (
    Representatives,
    best_clusters,
    choose_clusters,
)
from identilens.measures.structure.subspace import against_subspace, column_projector
from identilens.models.capture import Collector, Lengths, split_states
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.token_names import joined
from identilens.runs.files import Manifest, write_tensors
from identilens.runs.folder import RunFolder
from identilens.runs.provenance import Identity
from identilens.runs.reading import read_tensors
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Tables
from identilens.studies.items import Items
from identilens.studies.perturbation import perturbation_rows
from identilens.studies.structure.closing import Closing, Rows, dimensions, frame, space_of
from identilens.studies.structure.maps import head_rows
from identilens.studies.structure.result import Structure
from identilens.studies.structure.settings import StructureSettings

BATCH_SIZE = 8
_WEIGHTS_AT_ONCE = 2**25


@dataclass(frozen=True)
class LayerView:
    """One attention layer on one text, by ``<kind>.layer<l>``; ``visible`` is None when queries may use every key."""

    key: str
    weights: Float[Tensor, "head query key"]
    projected: ProjectedValues
    visible: Bool[Tensor, "query key"] | None

    @classmethod
    def of(cls, layer: CapturedLayer, text: int, length: int) -> "LayerView":
        """Return the view of a layer that was captured on a text.

        Raises:
            InputError: If it sees another number of positions than the text has.
            NumericalError: If weights or values are NaN or infinite.
        """
        site, weights = layer.site, layer.weights
        if weights is None or weights.shape[-2:] != (length, length):
            raise InputError(
                f"{site.kind} layer {site.layer} has attention of "
                f"{weights.shape[-2:] if weights is not None else 'no'} positions; a structure needs {length} "
                "queries and keys. Use a model that keeps the number of tokens."
            )
        values = layer.values.repeat_interleave(len(layer.queries) // len(layer.values), 0)
        factor = OutputFactor.of(site.fixed_projection.to(values.device))
        compact = values.double() @ factor.lower
        if not bool(torch.isfinite(compact).all() and torch.isfinite(weights).all()):
            raise NumericalError(
                f"text {text}, {site.kind} layer {site.layer}: weights or values are NaN or infinite. Look for an "
                "overflow in half precision (load with --dtype float32) or a broken checkpoint."
            )
        projected = ProjectedValues(compact, factor.d_model)
        return cls(f"{site.kind}.layer{site.layer}", weights.double(), projected, layer.visible)

    @cached_property
    def column(self) -> Float[Tensor, "head key key"]:
        """Projector on col(T) = ker(T')^⊥."""
        return column_projector(self.projected)[0]

    @property
    def effective(self) -> Float[Tensor, "head query key"]:
        """Effective attention (Brunner et al. 2020, Eq. 9)."""
        if self.visible is None:
            return self.weights @ self.column
        return self.projected.effective(self.weights, self.visible)


@dataclass(frozen=True)
class TextView:
    """One text in the model: its number, its attention layers, and the mean of its embedding output."""

    text: int
    layers: tuple[LayerView, ...]
    embedding: Float[Tensor, " d_model"]


@torch.no_grad()
def text_views(lens: Lens, items: Sequence[Item], numbers: range) -> Iterator[TextView]:
    """Yield what some of the texts, all of one length, leave in the model, batch by batch.

    Raises:
        InputError: If an attention layer sees another number of positions than the texts have.
        NumericalError: If weights or values are NaN or infinite.
    """
    sites, n = lens.sites(items[0]), items[0].length
    size = max(1, min(BATCH_SIZE, _WEIGHTS_AT_ONCE // (sum(site.heads for site in sites) * n * n)))
    for some in lens.batches(items, numbers, size):
        chunk = [items[number] for number in some]
        collector = Collector(sites, chunk, weights=True)
        output = lens.run(chunk, collector, output_hidden_states=True)
        lengths = Lengths(chunk)
        for index, number in enumerate(some):
            states = next(iter(split_states(output, lengths, index).values()))
            layers = tuple(LayerView.of(layer, number, n) for layer in collector.layers[index])
            yield TextView(number, layers, states[0].cpu().double().mean(0))


def sums_file(folder: Path, part: int) -> Path:
    """Return the file of the sums as they are after a part of a run."""
    return folder / "parts" / f"state-{part:06d}.safetensors"


PART = 32
"""Texts in one part of a folder run: what an interruption can cost. Even, so that pairs of texts share a part."""
VISIBLE_SHARE = 0.5
"""Share of the texts in which the weighted R's directions are visible."""


class StructureStudy(Study[StructureSettings, Structure]):
    """Compute for every head what the attention of texts of one length shares: W, the subspace R, patterns, norms.

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
            *(("first pass: R and representatives", self._first_pass, one) for one in chunks),
            *(("second pass: texts against R", self._second_pass, one) for one in chunks),
            *(
                ("perturbed weights in the model", self._perturbed, range(place, place + 1))
                for place in range(settings.perturbed)
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
        tables = tables_of(texts)
        if self.folder is not None:
            write_tensors(sums_file(self.folder, part), self.sums)
            # The sums of the part before stay until the next.
            old = sums_file(self.folder, part - 2).relative_to(self.folder)
            Manifest(self.folder).remove(old.as_posix())
        return Output({name: tables.get(name, frame(name, [])) for name in Structure.schema})

    def finish(self, tables: Tables) -> Output:
        """Return all tables, with the means over representatives and over all texts."""
        tokens = {
            text: joined(next(iter(self.items[text].tokens.values())))
            for text in self.members(self.chosen)
        }
        closed = self.closing.tables(tables["growth"], self.special, tokens)
        return Output({**tables, **closed}, self.closing.matrices())

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
    def closing(self) -> Closing:
        """What the last tables are made of, once all texts have gone by."""
        return Closing(
            self.sums,
            self._sites,
            len(self.items),
            self.clusterings,
            self.chosen,
            self.threshold,
        )

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
        by_layer = {
            key: space_of(self.sums, key, site, len(self.items))
            for key, site in self._sites.items()
        }
        return {
            key: (space.projector(), space.projector(VISIBLE_SHARE))
            for key, space in by_layer.items()
        }

    def _first_pass(self, texts: range) -> Tables:
        rows = []
        for view in text_views(self.lens, self.items, texts):
            if view.text in self._pool:
                if "embeddings" not in self.sums:
                    shape = len(self._pool), len(view.embedding)
                    self.sums["embeddings"] = view.embedding.new_zeros(shape)
                self.sums["embeddings"][self._pool[view.text]] = view.embedding
            for layer in view.layers:
                self.add(
                    layer.key,
                    visibility=layer.column,
                    all_raw=layer.weights,
                    all_effective=layer.effective.abs(),
                )
            done = view.text + 1
            if _is_mark(done) or done == len(self.items):
                for key, site in self._sites.items():
                    measured = dimensions(space_of(self.sums, key, site, done))
                    rows += head_rows(key, {"texts": done, **measured})
        return {"growth": frame("growth", rows)}

    def _second_pass(self, texts: range) -> Tables:
        members = {clusters: self.members(clusters) for clusters in self.clusterings}
        rows, pairs = [], []
        before: TextView | None = None
        for view in text_views(self.lens, self.items, texts):
            for layer in view.layers:
                for clusters in (one for one, chosen in members.items() if view.text in chosen):
                    self.add(layer.key, **{f"clusters{clusters}": layer.weights})
                    if clusters == self.chosen:
                        self.add(layer.key, effective=layer.effective.abs())
                inside, half = (
                    against_subspace(layer.weights, layer.column, kept)
                    for kept in self._projectors[layer.key]
                )
                signs = None
                if layer.visible is None:
                    signs = efficient_attention(layer.weights, layer.projected)
                rows += head_rows(
                    layer.key,
                    {
                        "text": view.text,
                        "rank": layer.projected.factor.rank,
                        "ignored_dimension": inside.ignored_dimension,
                        "ignored": inside.ignored,
                        "outside": inside.outside,
                        "outside_half": half.outside,
                        **{
                            name: getattr(signs, name, None)
                            for name in ("negative", "least", "row_sum_error")
                        },
                    },
                )
            compared = view.text % 2 and view.text // 2 < self.settings.compared_pairs
            if compared and before is not None:
                for one, other in zip(before.layers, view.layers, strict=True):
                    pairs += self._pair_rows(before.text, view.text, one, other)
            before = view
        return {"texts": frame("texts", rows), "pairs": frame("pairs", pairs)}

    def _pair_rows(self, first: int, second: int, one: LayerView, other: LayerView) -> Rows:
        if one.visible is not None:
            return []
        circle = circularity(
            one.weights, one.projected, other.projected, seed=self.settings.seed + first
        )
        disagree = zip(circle.able.tolist(), circle.disagree(TOLERANCE).tolist(), strict=True)
        return head_rows(
            one.key,
            {
                "first_text": first,
                "second_text": second,
                "freedom": circle.freedom,
                "overlap": circle.overlap,
                "chance": circle.chance,
                "moved": circle.moved,
                "change_first": circle.first,
                "change_second": circle.second,
                "disagree": [apart if able else None for able, apart in disagree],
            },
        )

    def _perturbed(self, places: range) -> Tables:
        rows = []
        for text in self.members(self.chosen)[places.start : places.stop]:
            item, structures = self.items[text], self.closing.structures
            rows += perturbation_rows(self.lens, item, text, structures, self.settings.seed)
        return {"perturbations": frame("perturbations", rows)}


def _is_mark(texts: int) -> bool:
    """Return whether dim R is noted after so many texts: each of the first eight, then two for each doubling."""
    power = texts.bit_length() - 1
    return texts <= 8 or texts in (1 << power, 3 << (power - 1))


def texts_of_length(lens: Lens, texts: Any, length: int) -> Items:
    """Return texts cut to exactly ``length`` tokens, special ones included; shorter ones are left out.

    Raises:
        InputError: For fewer than two texts, or input that is not made of tokens.
    """
    items = Items(lens, lens.reader.entries(texts, length), length)
    long_enough = [number for number, item in enumerate(items) if _size(item, number) >= length]
    if len(long_enough) < 2:
        raise InputError(
            f"a structure is what several texts have in common; expected at least 2 texts of {length} tokens, got "
            f"{len(long_enough)}. Give more texts, or lower length (--length)."
        )
    return items.chosen(long_enough)


def special_positions(lens: Lens, items: Sequence[Item]) -> list[int]:
    """Return the positions that hold a special token in every text."""
    special = set(getattr(lens.tokenizer, "all_special_ids", ()))
    places = set(range(len(items[0].tensors["input_ids"])))
    for item in items:
        ids = item.tensors["input_ids"].tolist()
        places = {place for place in places if ids[place] in special}
    return sorted(places)


def _size(item: Item, number: int) -> int:
    """Return the number of tokens of the shortest sequence of a text."""
    if not item.tokens or "input_ids" not in item.tensors:
        raise InputError(
            f"text {number} is not made of tokens; a structure needs texts or token ids of one length."
        )
    return min(map(len, item.tokens.values()))


structure = study_function(StructureStudy, "structure")
