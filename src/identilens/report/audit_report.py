"""The attention audit as one self-contained HTML file."""

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from identilens.report.audit_series import correlation_points, head_map, kinds, received_by_type, type_names
from identilens.report.heatmaps import KeptMap, axis_tokens, encoded, kept_maps, maps_within, matrices
from identilens.report.labels import visible_text
from identilens.report.page import Page, Section, write_page
from identilens.report.part import Part, joined
from identilens.results import Audit

MATRIX_BUDGET = 18_000_000
"""Characters of a report that may be spent on matrices; the rest of the file takes about 5 million."""

_SCRIPTS = ("maps.js", "audit/heads.js", "audit/length.js", "audit/types.js", "audit/viewer.js")


def write_audit_report(
    audit: Audit, path: str | Path, *, matrix_budget: int = MATRIX_BUDGET, parts: Sequence[Part] = ()
) -> Path:
    """Write the report of an audit as one HTML file without outside requests, and return its path.

    Args:
        audit: The result.
        path: The file to write; missing folders are made.
        matrix_budget: Characters to spend on attention matrices. Maps that do not fit are left out, and the
            page says so.
        parts: Other results to show behind the maps.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    kept = kept_maps(audit)
    shown = maps_within(kept, matrix_budget)
    finding = audit.summary()
    pearson = "undefined" if finding.pearson is None else f"{finding.pearson:.2f}"
    name = str(audit.provenance["model"].get("name"))
    texts = audit.provenance["texts"]["count"]
    held = kinds(audit)
    more = joined(parts)
    own = _sections(audit, held, kept, shown)
    page = Page(
        title="Attention audit",
        subject=f"{name} on {texts} {'text' if texts == 1 else 'texts'}",
        finding=finding.text.splitlines(),
        numbers=(
            (f"{finding.maps:,}", "attention maps audited (one for each text, layer and head)"),
            (
                f"{100 * finding.with_null_space:.0f} %",
                "of them with a null space: directions of the weights that have no effect",
            ),
            (
                f"{100 * finding.null_share:.1f} %",
                "of squared attention weight without effect on the output (mean null share)",
            ),
            (pearson, "mean correlation of raw and effective attention"),
        ),
        record=audit.provenance,
        sections=[*own[:-1], *more.sections, own[-1]],
        data={
            "kinds": held,
            "maps": {kind: _head_maps(audit, kind) for kind in held},
            "correlation": {kind: _correlation(audit, kind) for kind in held},
            "types": _types(audit, held),
            "examples": _examples(audit, shown),
            **more.data,
        },
        blobs={f"map-{index}": encoded(matrices(audit, one)) for index, one in enumerate(shown)} | dict(more.blobs),
        scripts=list(dict.fromkeys([*_SCRIPTS, *more.scripts])),
    )
    return write_page(page, path)


def _sections(audit: Audit, held: list[str], kept: list[KeptMap], shown: list[KeptMap]) -> list[Section]:
    means = audit.by_layer()
    whole = {one.text for one in kept} - {one.text for one in set(kept) - set(shown)}
    context = {
        "kept": len(kept),
        "shown": len(shown),
        "texts": len({one.text for one in shown}),
        "whole": len(whole),
        "left_out": len({one.text for one in kept} - {one.text for one in shown}),
    }
    switch = {"kinds": held}
    return [
        Section("heads", "Layer by layer, head by head", "audit/heads.html", switch | {"means": _by_layer(means)}),
        Section("length", "Correlation against length", "audit/length.html", switch),
        Section("types", "What token types receive", "audit/types.html", switch | {"any": len(audit.token_types) > 0}),
        Section("maps", "One attention map, split in two", "audit/viewer.html", context),
        Section("reading", "How to read this report", "audit/reading.html"),
    ]


def _by_layer(means: pl.DataFrame) -> list[dict[str, str]]:
    def shown(value: Any) -> str:
        if isinstance(value, float):
            return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.3f}"
        return "undefined" if value is None else f"{value:,}" if isinstance(value, int) else str(value)

    return [{name: shown(value) for name, value in row.items()} for row in means.iter_rows(named=True)]


def _head_maps(audit: Audit, kind: str) -> dict[str, Any]:
    share, pearson = head_map(audit, kind, "null_share"), head_map(audit, kind, "pearson")
    return {
        "layers": share.layers,
        "heads": share.heads,
        "null_share": [_numbers(row) for row in share.values],
        "pearson": [_numbers(row) for row in pearson.values],
    }


def _correlation(audit: Audit, kind: str) -> dict[str, Any]:
    points = correlation_points(audit, kind)
    columns = {name: _numbers(points.frame[name].to_numpy()) for name in ("length", "pearson")}
    whole = [name for name in points.frame.columns if name not in columns]
    return {
        **columns,
        **{name: points.frame[name].to_list() for name in whole},
        "d_v": points.d_v,
        "count": points.maps,
        "undefined": points.undefined,
        "grouped": points.grouped,
        "width": points.width,
    }


def _types(audit: Audit, held: list[str]) -> dict[str, Any]:
    """Return both token type tables by kind, types as numbers into one list of names."""
    names = type_names(audit)
    number = {name: index for index, name in enumerate(names)}
    tables: dict[str, Any] = {"names": [visible_text(name) for name in names]}
    for kind in held:
        received = received_by_type(audit, kind)
        pairs = audit.token_types.filter(pl.col("kind") == kind)
        tables[kind] = {
            "received": {"type": [number[name] for name in received["type"]], **_curves(received)},
            "pairs": {
                "key": [number[name] for name in pairs["key_type"]],
                "type": [number[name] for name in pairs["query_type"]],
                **_curves(pairs),
            },
        }
    return tables


def _curves(frame: pl.DataFrame) -> dict[str, Any]:
    return {
        "layer": frame["layer"].to_list(),
        "head": frame["head"].to_list(),
        "raw": _numbers(frame["raw"].to_numpy()),
        "effective": _numbers(frame["effective"].to_numpy()),
    }


def _examples(audit: Audit, shown: list[KeptMap]) -> dict[str, Any]:
    tokens: dict[str, list[str]] = {}
    maps: list[Mapping[str, Any]] = []
    for index, one in enumerate(shown):
        queries, keys = axis_tokens(audit.tokens.get(one.text, {}), one.kind, one.n_query, one.n_key)
        sequences = {f"{one.text}.{one.kind}.query": queries, f"{one.text}.{one.kind}.key": keys}
        tokens |= sequences
        maps.append({"id": f"map-{index}", **one.facts()})
    return {"tokens": tokens, "maps": maps}


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return numbers with five significant digits, None for what is undefined."""
    return [float(f"{value:.5g}") if isfinite(value) else None for value in values.tolist()]
