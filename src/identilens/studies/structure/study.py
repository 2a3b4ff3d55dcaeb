"""Texts in, results out: what the attention of a corpus has in common, head by head (structure2025)."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from identilens.errors import InputError
from identilens.linalg import FLOAT32_EPS
from identilens.measures.structure.weights import Scale, check_threshold
from identilens.models.lens import Lens
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance
from identilens.results.structure import TABLES, Structure
from identilens.studies.structure.lengths import Cut, Shorter, special_positions, texts_of_length
from identilens.studies.structure.runner import Plan, Runner

POOL = 2000
"""Texts, drawn evenly, among which representatives are sought: clustering holds their embeddings."""


@dataclass(frozen=True)
class _Options:
    """What changes the numbers."""

    length: int
    cut: Cut
    shorter: Shorter
    threshold: float | None
    scale: Scale
    penalty: float
    clusters: int | None
    pool: int
    pairs: int
    perturbed: int
    seed: int


def structure(
    lens: Lens,
    texts: Any,
    *,
    length: int,
    cut: Cut = "clip",
    shorter: Shorter = "error",
    threshold: float | None = None,
    scale: Scale = "mean",
    penalty: float = 0.0,
    clusters: int | None = None,
    pool: int = POOL,
    pairs: int = 50,
    perturbed: int = 2,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Structure:
    """Return what the attention of texts of one length has in common, for every head (structure2025, II.B and III).

    Texts go by twice. First they are added to the Gram matrix of R (Eq. 6) and to the sums of raw and effective
    weights, and representatives are chosen (III.B.1). Then each is held against R, and the representatives' weights
    make W (Eq. 7, 8). Memory does not grow with the number of texts, but for their token ids and the embeddings of at
    most ``pool`` of them.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.
        length: n, special tokens included; every text has as many tokens.
        cut: ``clip`` keeps the start of each text, ``window`` all windows of the length.
        shorter: ``error`` for texts that are too short, or ``skip`` them.
        threshold: l of Eq. 8; 2/n on the mean when not given: twice what uniform attention has.
        scale: Whether l is in units of the ``mean`` or the ``sum`` of the representatives' weights.
        penalty: h of Eq. 8, h(x) = penalty · x.
        clusters: Number of representatives; by the largest silhouette when not given.
        pool: Texts among which representatives are sought.
        pairs: Pairs of texts whose null spaces are compared (II.B).
        perturbed: Representatives whose weights are perturbed and put back into the model (III).
        seed: Of clustering, pool and perturbations.
        out: Folder to fill while the analysis runs; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (steps done, steps in all): two for each text, one for each text that is perturbed.

    Raises:
        InputError: For texts that are too short or too few, or options outside their range.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If weights or values are NaN or infinite, naming where.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    options = _Options(length, cut, shorter, threshold, scale, penalty, clusters, pool, pairs, perturbed, seed)
    _check(options)
    items = texts_of_length(lens, texts, length, cut=cut, shorter=shorter)
    if clusters is not None and clusters > min(len(items), pool):
        raise InputError(f"expected at most {min(len(items), pool)} clusters, one a text; got {clusters}.")
    drawn = np.random.default_rng(seed).permutation(len(items))[:pool]
    plan = Plan(
        length=length,
        threshold=threshold,
        scale=scale,
        penalty=penalty,
        clusters=clusters,
        pool=tuple(sorted(int(number) for number in drawn)),
        pairs=pairs,
        perturbed=perturbed,
        seed=seed,
        special=tuple(special_positions(lens, items)),
    )
    record = _record(lens, [item.identity for item in items], options, plan)
    folder = None if out is None else Path(out)
    runner = Runner(lens, items, plan, folder)
    tables = run_parts(
        record,
        runner.sizes,
        runner.run,
        dict.fromkeys(TABLES, whole),
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
        before_writing=runner.keep,
    )
    if folder is not None:
        return Structure.load(folder)
    return Structure(**tables, matrices=runner.matrices(), provenance=record)


def _check(options: _Options) -> None:
    if options.threshold is not None and options.scale == "mean":
        check_threshold(options.threshold, 1, "mean")
    if options.threshold is not None and options.threshold < 0:
        raise InputError(f"the threshold l must be 0 or more; got {options.threshold}.")
    if not 0 <= options.penalty < 1:
        raise InputError(f"penalty must be a share in [0, 1); got {options.penalty}.")
    if options.clusters is not None and options.clusters < 1:
        raise InputError(f"clusters must be at least 1; got {options.clusters}.")
    if options.pool < 2 or options.pairs < 0 or options.perturbed < 0:
        raise InputError(
            f"expected a pool of at least 2 texts, and pairs and perturbed of 0 or more; got {options.pool}, "
            f"{options.pairs} and {options.perturbed}."
        )


def _record(lens: Lens, texts: list[str], options: _Options, plan: Plan) -> dict[str, Any]:
    settings = {name: value for name, value in asdict(options).items() if name != "seed"}
    settings["special_positions"] = list(plan.special)
    settings["rank_tolerance"] = f"max(n, d_model) * {FLOAT32_EPS} * largest singular value"
    # What is reported is l on the mean, whatever units it was given in.
    if options.threshold is None:
        settings |= {"threshold": 2 / options.length, "scale": "mean"}
    return provenance("structure", model=lens.facts, texts=texts, settings=settings, seed=options.seed)
