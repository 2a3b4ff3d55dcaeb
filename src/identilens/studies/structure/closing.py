"""The tables of a structure analysis that are made of its sums, when all texts have gone by."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import polars as pl
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.measures.structure.patterns import PatternScore, pattern_of, pattern_scores
from identilens.measures.structure.representatives import Representatives
from identilens.measures.structure.subspace import Subspace, subspace_of
from identilens.measures.structure.weights import structure_weights
from identilens.runs.study import Tables
from identilens.runs.tables import table_of
from identilens.studies.structure.result import Structure

MIXED, EMPTY = "mixed", "empty"
Rows = Sequence[Mapping[str, Any]]
"""Rows of a table by column name."""


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


def frame(name: str, rows: Rows) -> pl.DataFrame:
    """Return rows as a table of the result; what is not defined (NaN) is null."""
    return table_of(Structure.schema[name], rows).fill_nan(None)


def growth_rows(sums: Mapping[str, Tensor], widths: Mapping[str, int], texts: int) -> Rows:
    """Return dim R and the dimensions of its weighted versions after so many texts."""
    rows = []
    for key, d_model in widths.items():
        spaces = _spaces(sums, key, texts, d_model)
        dimensions = _dimensions(*spaces)
        rows += [
            {**address(key, head), "texts": texts, **{name: int(sizes[head]) for name, sizes in dimensions.items()}}
            for head in range(len(spaces[0].dimension))
        ]
    return rows


def _dimensions(space: Subspace, energy: Subspace) -> dict[str, Tensor]:
    return {
        "dim_r": space.dimension,
        "dim_half": space.dimension_at(0.5),
        "dim_95": space.effective_dimension(),
        "energy_95": energy.effective_dimension(),
    }


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
        dimensions = _dimensions(space, energy)
        for head in range(len(space.dimension)):
            where = address(key, head)
            structures = {
                "raw": _structure(sums[f"{key}.clusters{choice.clusters}"][head], choice),
                "effective": _structure(sums[f"{key}.effective"][head], choice),
            }
            scores = {name: pattern_scores(W, special) for name, W in structures.items()}
            patterns += [{**where, "weights": name, **asdict(one)} for name, held in scores.items() for one in held]
            numbers = {
                "length": space.vectors.shape[-1],
                "d_v": d_v,
                "texts": texts,
                "texts_to_fill": int(sums[f"{key}.grown"][head, 1]),
                "mean_rank": float(space.eigenvalues[head].sum()),
                **{name: int(held[head]) for name, held in dimensions.items()},
            }
            heads.append({**where, **numbers, **_described(structures, scores, choice)})
    return {
        "table": frame("table", heads),
        "spectrum": frame("spectrum", spectrum),
        "patterns": frame("patterns", patterns),
        **_choice_tables(clusterings, choice),
        "stability": frame("stability", list(_stability_rows(sums, sorted(clusterings), choice, texts))),
    }


def _described(
    structures: Mapping[str, Tensor], scores: Mapping[str, tuple[PatternScore, ...]], choice: Choice
) -> dict[str, Any]:
    """Return what the row of a head says of its structures."""
    raw, effective = (_named(structures[name], scores[name]) for name in ("raw", "effective"))
    return {
        "representatives": choice.clusters,
        "threshold": choice.threshold,
        **raw,
        **{f"effective_{name}": value for name, value in effective.items()},
        "raw_to_effective": float(_relative(structures["effective"], structures["raw"])),
    }


def _choice_tables(clusterings: Mapping[int, Representatives], choice: Choice) -> Tables:
    clusters = [
        {"clusters": count, "silhouette": one.silhouette, "chosen": count == choice.clusters}
        for count, one in clusterings.items()
    ]
    sizes = clusterings[choice.clusters].sizes.tolist()
    representatives = [
        {"text": text, "cluster": cluster, "size": sizes[cluster], "tokens": choice.tokens[cluster]}
        for cluster, text in enumerate(choice.texts)
    ]
    return {
        "clusters": frame("clusters", clusters),
        "representatives": frame("representatives", representatives),
    }


def _named(structure: Float[Tensor, "q k"], scores: Sequence[PatternScore]) -> dict[str, Any]:
    """Return the pattern of a structure by name, its score and place; "empty" where most rows have nothing left."""
    best, score, empty = pattern_of(scores), max(one.score for one in scores), _empty_rows(structure)
    row = {"empty_rows": empty, "pattern": MIXED, "score": score, "place": None}
    if 2 * empty > len(structure):
        return row | {"pattern": EMPTY}
    return row | asdict(best) if best else row


def _empty_rows(structure: Float[Tensor, "q k"]) -> int:
    return int((structure.sum(-1) == 0).sum())


def _spectrum_rows(key: str, space: Subspace, energy: Subspace) -> Iterator[dict[str, Any]]:
    for head in range(len(space.dimension)):
        pairs = zip(space.eigenvalues[head].tolist(), energy.eigenvalues[head].tolist(), strict=True)
        for index, (visible, part) in enumerate(pairs):
            yield {**address(key, head), "index": index, "visibility": visible, "energy": part}


def _stability_rows(
    sums: Mapping[str, Tensor], ladder: Sequence[int], choice: Choice, texts: int
) -> Iterator[dict[str, Any]]:
    """Yield how far W of k representatives is from that of the next k and of all texts."""
    for key in _keys(sums):
        means = {one: sums[f"{key}.clusters{one}"] / one for one in ladder}
        whole = sums[f"{key}.all_raw"] / texts

        def structured(mean: Tensor) -> Tensor:
            return structure_weights(mean, choice.threshold, penalty=choice.penalty)

        for one, following in zip(ladder, [*ladder[1:], None], strict=True):
            to_all = _relative(structured(means[one]), structured(whole))
            plain = _relative(means[one], whole)
            drawn = _of_random_texts(sums[f"{key}.squares"], whole, one, texts)
            to_next = None if following is None else _relative(structured(means[one]), structured(means[following]))
            for head in range(len(whole)):
                yield {
                    **address(key, head),
                    "clusters": one,
                    "to_all": float(to_all[head]),
                    "to_next": None if to_next is None else float(to_next[head]),
                    "mean_to_all": float(plain[head]),
                    "random_to_all": float(drawn[head]),
                }


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


def address(key: str, head: int) -> dict[str, Any]:
    """Return what names a head in a table."""
    kind, layer = key.split(".layer")
    return {"kind": kind, "layer": int(layer), "head": head}


def layer_key(row: Mapping[str, Any]) -> str:
    """Return the key of the layer that a row of a table by head belongs to."""
    return f"{row['kind']}.layer{row['layer']}"
