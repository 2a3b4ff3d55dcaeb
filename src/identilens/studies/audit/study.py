"""Texts in, results out: how much of a model's attention has no effect on its heads' outputs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from identilens.errors import InputError
from identilens.linalg import FLOAT32_EPS
from identilens.models.inputs import Item
from identilens.models.layout import Site
from identilens.models.lens import Lens
from identilens.results.audit import Audit, merge_token_types
from identilens.results.matrices import of_text, write_matrices
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance
from identilens.studies.audit.runner import AuditSettings, Runner

_PART = 32
"""Texts in one part of a folder run: what an interruption can cost."""


def audit(
    lens: Lens,
    texts: Any,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    settings: AuditSettings | None = None,
    **options: Any,
) -> Audit:
    """Return how much of every attention map has no effect on its head's output.

    For each text, layer and head: rank and nullity of T (Brunner et al. 2020, Eq. 6), the share of squared
    weight in its null space (Eq. 8, 9), the correlation of raw and effective attention (Fig. 1a), and what
    each token type receives (Fig. 1b, 1c, 5). Measures are taken while the model runs, layer by layer;
    padding is cut away first.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        out: Folder to fill while the audit runs; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (texts done, texts in all).
        settings: All options at once.
        options: Single options of `AuditSettings`, such as ``stream="always"``.

    Raises:
        InputError: For texts or options that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If the model's attention has NaN or infinite entries, naming where.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    chosen = _settings(settings, options)
    items = lens.read(texts, chosen.max_length)
    sites = lens.sites(items[0])
    _check_layers(chosen.layers, sites)
    record = _record(lens, items, chosen)
    keep = _kept_texts(items, chosen)
    runner = Runner(lens, items, sites, chosen, keep)
    parts = [range(start, min(start + _PART, len(items))) for start in range(0, len(items), _PART)]

    def write_kept() -> None:
        for text in list(runner.tokens):
            write_matrices(Path(out or ""), text, of_text(runner.matrices, text), runner.tokens.pop(text))
        runner.matrices.clear()

    tables = run_parts(
        record,
        [len(part) for part in parts],
        lambda part: runner.run(parts[part]),
        {"table": whole, "token_types": merge_token_types},
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
        before_writing=write_kept,
    )
    if out is not None:
        return Audit.load(out)
    return Audit(tables["table"], tables["token_types"], record, runner.matrices, runner.tokens)


def _settings(settings: AuditSettings | None, options: dict[str, Any]) -> AuditSettings:
    known = set(AuditSettings.__dataclass_fields__)
    unknown = sorted(set(options) - known)
    if unknown:
        raise InputError(f"unknown audit options {', '.join(unknown)}; choose from {', '.join(sorted(known))}.")
    base = settings or AuditSettings()
    chosen = AuditSettings(**{**{name: getattr(base, name) for name in known}, **options})
    if chosen.batch_size < 1:
        raise InputError(f"batch_size must be at least 1; got {chosen.batch_size}.")
    if chosen.max_length is not None and chosen.max_length < 1:
        raise InputError(f"max_length must be at least 1; got {chosen.max_length}.")
    if chosen.stream not in ("auto", "always", "never"):
        raise InputError(f"stream must be auto, always or never; got {chosen.stream!r}.")
    if chosen.value_bias not in ("in", "out"):
        raise InputError(f"value_bias must be in or out; got {chosen.value_bias!r}.")
    return chosen


def _check_layers(layers: tuple[int, ...] | None, sites: tuple[Site, ...]) -> None:
    held = sorted({site.layer for site in sites})
    missing = sorted(set(layers or ()) - set(held))
    if missing:
        raise InputError(f"the model has layers {held[0]} to {held[-1]}; got {missing}. Layers count from 0.")


def _kept_texts(items: list[Item], settings: AuditSettings) -> set[int]:
    if settings.matrices:
        if settings.stream == "always":
            raise InputError(
                "matrices hold every weight, stream=always never does. Leave one of the two out "
                "(--matrices, --stream always)."
            )
        return set(range(len(items)))
    fitting = [index for index, item in enumerate(items) if item.length <= settings.example_length]
    return set(sorted(fitting, key=lambda index: -items[index].length)[: settings.examples])


def _record(lens: Lens, items: list[Item], settings: AuditSettings) -> dict[str, Any]:
    options = {name: getattr(settings, name) for name in AuditSettings.__dataclass_fields__}
    tolerance = f"max(n, d_model) * {FLOAT32_EPS} * largest singular value"
    return provenance(
        "audit",
        model=lens.facts,
        texts=[item.identity for item in items],
        settings={**options, "rank_tolerance": tolerance},
    )
