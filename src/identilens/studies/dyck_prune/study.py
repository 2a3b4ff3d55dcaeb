"""Theorem 3 measured: how near pruned random transformers come to a small target; and Corollary 3's pair."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from identilens.dyck.plain import PlainLayer, small_target
from identilens.dyck.pruning import Sizes, approximation_error, is_pruning, prune_to, random_transformer
from identilens.errors import InputError
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance

PRUNING_COLUMNS: dict[str, Any] = {
    "candidates": pl.Int64,
    "seed": pl.Int64,
    "layers": pl.Int64,
    "embedding": pl.Int64,
    "key_size": pl.Int64,
    "width": pl.Int64,
    "weights": pl.Int64,
    "kept": pl.Int64,
    "error": pl.Float64,
    "other_error": pl.Float64,
    "apart": pl.Float64,
    "shared_layer": pl.Int64,
    "shared": pl.Boolean,
    "pruning": pl.Boolean,
}
"""Columns: one row a number of candidates and a random transformer.

``error`` is the largest error of a token for the target, ``other_error`` for a second target pruned from the same
random weights; ``shared`` says that both prunings coincide on every weight of ``shared_layer``, ``apart`` how far the
two functions lie apart, ``pruning`` that every weight kept is the random one.
"""


@dataclass(frozen=True)
class Pruning:
    """What is hidden in what.

    Attributes:
        layers: L of the target; the random transformer has 4 L.
        size: m of the target.
        key_size: m_a of the target.
        width: w of the target.
        norm_constant: C_LN.
        candidates: Random products for each weight of the target: width of the random transformer.
        seeds: Random transformers for each width.
        target_seed: Of the target; the second target has the next one.
        inputs: Random inputs that errors are taken over.
        shared_layer: Layer of the random transformer whose pruned weights both targets share (Corollary 3).
    """

    layers: int = 1
    size: int = 4
    key_size: int = 4
    width: int = 8
    norm_constant: float = 0.1
    candidates: tuple[int, ...] = (4, 6, 8, 10, 12, 14, 16)
    seeds: int = 3
    target_seed: int = 0
    inputs: int = 2000
    shared_layer: int = 0

    def __post_init__(self) -> None:
        if min(self.layers, self.size, self.key_size, self.width, self.seeds, self.inputs, *self.candidates) < 1:
            raise InputError(f"expected sizes, seeds and candidates of at least 1, got {self}")
        if max(self.candidates) > 24 or self.norm_constant <= 0:
            raise InputError(
                f"expected at most 24 candidates and a positive norm constant (Lemma 10), got {max(self.candidates)} "
                f"and {self.norm_constant}"
            )
        if not 0 <= self.shared_layer < 4 * self.layers:
            raise InputError(f"expected a shared layer from 0 to {4 * self.layers - 1}, got {self.shared_layer}")

    def target(self, offset: int = 0) -> list[PlainLayer]:
        """Return the target, or with an offset another one."""
        return small_target(
            self.layers,
            self.size,
            self.key_size,
            self.width,
            norm_constant=self.norm_constant,
            seed=self.target_seed + offset,
        )


def prune_by_width(
    pruning: Pruning | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> pl.DataFrame:
    """Return the error of prunings of random transformers of growing width (Theorem 3), each with Corollary 3's pair.

    Args:
        pruning: Target and widths.
        out: Folder to fill row by row; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (rows done, rows in all).

    Raises:
        InputError: For sizes that make no sense.
        OutputFolderError: If the folder holds something else or cannot be written.
    """
    chosen = pruning or Pruning()
    parts = [(candidates, seed) for candidates in chosen.candidates for seed in range(chosen.seeds)]
    record = provenance(
        "dyck-pruning",
        model={"name": f"random transformers of {4 * chosen.layers} layers"},
        texts=[f"{candidates} {seed}" for candidates, seed in parts],
        settings=asdict(chosen),
    )
    tables = run_parts(
        record,
        [1] * len(parts),
        lambda part: {"table": _row(chosen, *parts[part])},
        {"table": whole},
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    )
    return tables["table"]


def _row(chosen: Pruning, candidates: int, seed: int) -> pl.DataFrame:
    sizes = Sizes(candidates, chosen.size, chosen.width)
    large = random_transformer(sizes, 4 * chosen.layers, chosen.norm_constant, seed)
    targets = [chosen.target(), chosen.target(1)]
    pruned = [prune_to(target, large, sizes, untouched=chosen.shared_layer) for target in targets]
    errors = [
        approximation_error(target, found, inputs=chosen.inputs) for target, found in zip(targets, pruned, strict=True)
    ]
    one, other = (found[chosen.shared_layer].matrices for found in pruned)
    row = (
        candidates, seed, len(large), sizes.embedding, sizes.key_size, sizes.projection,
        sizes.parameters * len(large),
        sum(int((weight != 0).sum()) for layer in pruned[0] for weight in layer.matrices.values()),
        *errors,
        approximation_error(targets[0], targets[1], inputs=chosen.inputs),
        chosen.shared_layer,
        all(bool((one[name] == other[name]).all()) for name in one),
        all(is_pruning(found, large) for found in pruned),
    )  # fmt: skip
    return pl.DataFrame([row], schema=PRUNING_COLUMNS, orient="row")
