"""The tables of a structure analysis that are made of its sums, when all texts have gone by."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.patterns import PatternScore, pattern_of, pattern_scores
from identilens.measures.structure.representatives import Representatives
from identilens.measures.structure.subspace import Subspace, subspace_of
from identilens.measures.structure.weights import structure_weights
from identilens.results.parts import Tables
from identilens.results.structure import TABLES

MIXED, EMPTY = "mixed", "empty"


@dataclass(frozen=True)
class Choice:
    """What makes W.

    Attributes:
        clusters: Number of representatives.
        threshold: l on the mean.
        penalty: h(x) = penalty · x.
        texts: The representatives.
        tokens: Their tokens.
    """

    clusters: int
    threshold: float
    penalty: float
    texts: Sequence[int]
    tokens: Sequence[str]


def frame(name: str, rows: Sequence[tuple]) -> pl.DataFrame:
    """Return rows as a table of the result; what is not defined (NaN) is null."""
    schema = TABLES[name]
    whole = [kind == pl.Int64 for kind in schema.values()]

    def cell(value: Any, integer: bool) -> Any:
        if value is None or value != value:
            return None
        return int(value) if integer else value

    exact = [tuple(cell(value, integer) for value, integer in zip(row, whole, strict=True)) for row in rows]
    return pl.DataFrame(exact, schema=schema, orient="row")


def growth_rows(sums: Mapping[str, Tensor], widths: Mapping[str, int], texts: int) -> list[tuple]:
    """Return dim R and the dimensions of its weighted versions after so many texts."""
    rows = []
    for key, d_model in widths.items():
        space, energy = _spaces(sums, key, texts, d_model)
        measures = (space.dimension, space.dimension_at(0.5), space.effective_dimension(), energy.effective_dimension())
        for head in range(len(space.dimension)):
            rows.append((*_address(key), head, texts, *(int(measure[head]) for measure in measures)))
    return rows


def mean_matrices(sums: Mapping[str, Tensor], clusters: int, texts: int) -> dict[str, Tensor]:
    """Return the matrices of the result in float32."""
    found: dict[str, Tensor] = {}
    for key in _keys(sums):
        found[f"{key}.raw"] = sums[f"{key}.clusters{clusters}"] / clusters
        found[f"{key}.effective"] = sums[f"{key}.effective"] / clusters
        for name in ("all_raw", "all_effective", "visibility"):
            found[f"{key}.{name}"] = sums[f"{key}.{name}"] / texts
    return {name: tensor.float() for name, tensor in found.items()}


def tables(
    sums: Mapping[str, Tensor],
    clusterings: Mapping[int, Representatives],
    choice: Choice,
    sizes: Sequence[tuple[str, int]],
    widths: Mapping[str, int],
    texts: int,
    special: Sequence[int],
) -> Tables:
    """Return the tables by head, and those on the choice of representatives.

    Args:
        sums: Of `State`.
        clusterings: By number of clusters.
        choice: What makes W.
        sizes: d_v of each layer.
        widths: d_model of each layer.
        texts: How many went by.
        special: Positions of special tokens in every text.
    """
    heads, spectrum, patterns = [], [], []
    for key, d_v in sizes:
        space, energy = _spaces(sums, key, texts, widths[key])
        spectrum += list(_spectrum_rows(key, space, energy))
        for head in range(len(space.dimension)):
            scores = {
                "raw": pattern_scores(_structure(sums[f"{key}.clusters{choice.clusters}"][head], choice), special),
                "effective": pattern_scores(_structure(sums[f"{key}.effective"][head], choice), special),
            }
            for name, found in scores.items():
                patterns += [(*_address(key), head, name, one.pattern, one.score, one.place) for one in found]
            heads.append(_head_row(key, head, d_v, texts, space, energy, sums, choice, scores))
    chosen = clusterings[choice.clusters]
    members = zip(choice.texts, range(choice.clusters), chosen.sizes.tolist(), choice.tokens, strict=True)
    return {
        "table": frame("table", heads),
        "spectrum": frame("spectrum", spectrum),
        "patterns": frame("patterns", patterns),
        "clusters": frame(
            "clusters", [(one, found.silhouette, one == choice.clusters) for one, found in clusterings.items()]
        ),
        "representatives": frame("representatives", list(members)),
        "stability": frame("stability", list(_stability_rows(sums, sorted(clusterings), choice, texts))),
    }


def _head_row(
    key: str, head: int, d_v: int, texts: int, space: Subspace, energy: Subspace,
    sums: Mapping[str, Tensor], choice: Choice, scores: Mapping[str, tuple[PatternScore, ...]],
) -> tuple:  # fmt: skip
    W = _structure(sums[f"{key}.clusters{choice.clusters}"][head], choice)
    effective = _structure(sums[f"{key}.effective"][head], choice)
    return (
        *_address(key), head, space.vectors.shape[-1], d_v, texts, choice.clusters, choice.threshold,
        int(space.dimension[head]), int(sums[f"{key}.grown"][head, 1]), int(space.dimension_at(0.5)[head]),
        int(space.effective_dimension()[head]), int(energy.effective_dimension()[head]),
        float(space.eigenvalues[head].sum()),
        _empty_rows(W), *_named(W, scores["raw"]),
        _empty_rows(effective), *_named(effective, scores["effective"]),
        float(_relative(effective, W)),
    )  # fmt: skip


def _named(structure: Float[Tensor, "q k"], scores: Sequence[PatternScore]) -> tuple[str, float, int | None]:
    """Return the pattern of a structure by name, its score and place; "empty" where most rows have nothing left."""
    best, score = pattern_of(scores), max(one.score for one in scores)
    if 2 * _empty_rows(structure) > len(structure):
        return EMPTY, score, None
    return (best.pattern, best.score, best.place) if best else (MIXED, score, None)


def _empty_rows(structure: Float[Tensor, "q k"]) -> int:
    return int((structure.sum(-1) == 0).sum())


def _spectrum_rows(key: str, space: Subspace, energy: Subspace) -> Iterator[tuple]:
    for head in range(len(space.dimension)):
        share = energy.eigenvalues[head]
        pairs = zip(space.eigenvalues[head].tolist(), share.tolist(), strict=True)
        for index, (visible, part) in enumerate(pairs):
            yield (*_address(key), head, index, visible, part)


def _stability_rows(sums: Mapping[str, Tensor], ladder: Sequence[int], choice: Choice, texts: int) -> Iterator[tuple]:
    """Yield how far W of k representatives is from that of the next k and of all texts."""
    for key in _keys(sums):
        means = {one: sums[f"{key}.clusters{one}"] / one for one in ladder}
        whole = sums[f"{key}.all_raw"] / texts

        def structured(mean: Tensor) -> Tensor:
            return structure_weights(mean, choice.threshold, penalty=choice.penalty)

        for place, one in enumerate(ladder):
            to_all = _relative(structured(means[one]), structured(whole))
            plain = _relative(means[one], whole)
            drawn = _of_random_texts(sums[f"{key}.squares"], whole, one, texts)
            following = ladder[place + 1] if place + 1 < len(ladder) else None
            to_next = None if following is None else _relative(structured(means[one]), structured(means[following]))
            for head in range(len(whole)):
                step = None if to_next is None else float(to_next[head])
                numbers = (float(to_all[head]), step, float(plain[head]), float(drawn[head]))
                yield (*_address(key), head, one, *numbers)


def _of_random_texts(
    squares: Float[Tensor, " head"], whole: Float[Tensor, "head q k"], clusters: int, texts: int
) -> Float[Tensor, " head"]:
    """Return the distance (root mean square) that the mean over as many texts, drawn at random, has from that of all.

    The variance of a mean of k of N texts without putting back is s²/k · (1 − k/N).
    """
    size = whole.square().sum((-2, -1))
    variance = (squares - texts * size).clamp_min(0.0) / max(1, texts - 1)
    return (variance / clusters * (1 - clusters / texts) / size).sqrt()


def _relative(found: Float[Tensor, "*head q k"], wanted: Float[Tensor, "*head q k"]) -> Float[Tensor, "*head"]:
    """Return ‖found − wanted‖_F / ‖wanted‖_F, NaN where a structure is measured by one with nothing left in it."""
    size, apart = torch.linalg.matrix_norm(wanted), torch.linalg.matrix_norm(found - wanted)
    return torch.where(size > 0, apart / size, torch.where(apart > 0, torch.nan, 0.0))


def _structure(summed: Float[Tensor, "q k"], choice: Choice) -> Float[Tensor, "q k"]:
    # Sizes of effective weights may exceed 1 here and there; the threshold keeps its meaning.
    return structure_weights(summed / choice.clusters, choice.threshold, penalty=choice.penalty)


def _spaces(sums: Mapping[str, Tensor], key: str, texts: int, d_model: int) -> tuple[Subspace, Subspace]:
    """Return R from projectors, and the spectrum of the values' energy in the same form."""
    return (
        subspace_of(sums[f"{key}.visibility"], texts, d_model),
        subspace_of(sums[f"{key}.energy"], texts, d_model),
    )


def _keys(sums: Mapping[str, Tensor]) -> list[str]:
    return [name.removesuffix(".all_raw") for name in sums if name.endswith(".all_raw")]


def _address(key: str) -> tuple[Any, Any]:
    kind, layer = key.split(".layer")
    return kind, int(layer)


def layer_key(row: Sequence[Any]) -> str:
    """Return the key of the layer that a row of a table by head belongs to."""
    return f"{row[0]}.layer{row[1]}"
