"""Texts in, results out: what is certain about each attention weight."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import torch

from identilens.errors import InputError
from identilens.measures.attention.intervals import PIN_TOLERANCE, certify_row, minimum_norm_alternative
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.sequences import Kind, names_at, position_names, sides
from identilens.results.intervals import TABLES, Intervals
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance
from identilens.studies.alternatives.study import numbers

_ROWS = 8
"""Rows in one part of a folder run: what an interruption can cost."""


@dataclass(frozen=True)
class _Unit:
    """Some rows of one head on one text."""

    text: int
    site: Site
    head: int
    queries: tuple[int, ...]


def intervals(
    lens: Lens,
    texts: Any,
    *,
    layers: Sequence[int] | int | None = None,
    heads: Sequence[int] | int | None = None,
    kind: Kind | None = None,
    queries: Sequence[int | str] | int | str | None = None,
    pin_tolerance: float = PIN_TOLERANCE,
    max_length: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Intervals:
    """Return the range of every attention weight over all distributions with the same output, and certified order.

    For each row: lo and hi of each weight by linear programs, proven; whether it is pinned; the pairs of keys whose
    order every alternative keeps; the key that stays first; the alternative of least norm. About a second a row of
    100 tokens. Derivation and limits: docs/alternatives.md.

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers, counted from 0 within each kind; all when None.
        heads: Heads, counted from 0; all when None.
        kind: ``encoder``, ``decoder`` or ``cross``; all that the model has when None.
        queries: Positions or tokens of the rows; all when None. A token stands for every position that holds it.
        pin_tolerance: Width up to which a weight counts as pinned.
        max_length: Cut longer texts to this many tokens.
        out: Folder to fill a few rows at a time; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (rows done, rows in all).

    Raises:
        InputError: For texts or options that cannot be used, a head or query that is not there, or attention with
            sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an interval cannot be proven.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    if not 0 <= pin_tolerance < 1:
        raise InputError(f"expected a pin_tolerance in [0, 1); got {pin_tolerance}.")
    wanted = [queries] if isinstance(queries, int | str) else None if queries is None else list(queries)
    items = lens.read(texts, max_length)
    units = _units(lens, items, numbers(layers), numbers(heads), kind, wanted)
    record = provenance(
        "intervals",
        model=lens.facts,
        texts=[item.identity for item in items],
        settings={
            "layers": numbers(layers), "heads": numbers(heads), "kind": kind, "queries": wanted,
            "pin_tolerance": pin_tolerance, "max_length": max_length,
        },
    )  # fmt: skip
    read: dict[tuple, Head] = {}

    def run(part: int) -> dict[str, pl.DataFrame]:
        unit = units[part]
        address = (unit.text, unit.site.layer, unit.head, unit.site.kind)
        if address not in read:
            read.clear()
            read[address] = read_head(lens, items[unit.text], unit.site.layer, unit.head, unit.site.kind)
        return _tables(lens, items[unit.text], address, read[address], unit.queries, pin_tolerance)

    merge = dict.fromkeys(TABLES, whole) | {"tokens": lambda table: table.unique(maintain_order=True)}
    tables = run_parts(
        record, [len(unit.queries) for unit in units], run, merge,
        out=out, resume=resume, overwrite=overwrite, progress=progress,
    )  # fmt: skip
    return Intervals(**tables, provenance=record) if out is None else Intervals.load(out)


def _units(
    lens: Lens,
    items: list[Item],
    layers: tuple[int, ...] | None,
    heads: tuple[int, ...] | None,
    kind: Kind | None,
    wanted: list[int | str] | None,
) -> list[_Unit]:
    units = []
    for text, item in enumerate(items):
        for site, head in chosen_heads(lens.sites(items[0]), layers, heads, kind):
            names = item.tokens.get(sides(site.kind, item.tokens).query, ())
            if not names:  # an image's positions show only in the model
                count = len(read_head(lens, item, site.layer, head, site.kind).queries)
                names = position_names(lens.model.config, count)
            rows = range(len(names)) if wanted is None else _positions(names, wanted, text)
            units += [_Unit(text, site, head, tuple(rows[at : at + _ROWS])) for at in range(0, len(rows), _ROWS)]
    return units


def _positions(names: Sequence[str], wanted: list[int | str], text: int) -> list[int]:
    """Return the positions asked for, in order."""
    found: set[int] = set()
    for one in wanted:
        places = [place for place, name in enumerate(names) if name == one]
        if not places and str(one).isdigit() and int(one) < len(names):
            places = [int(one)]
        if not places:
            raise InputError(
                f"text {text} has no token or position {one!r} among its {len(names)} queries; its tokens are "
                f"{' '.join(names[:12])}{' …' if len(names) > 12 else ''}"
            )
        found.update(places)
    return sorted(found)


def _tables(
    lens: Lens, item: Item, address: tuple, head: Head, queries: Sequence[int], pin_tolerance: float
) -> dict[str, pl.DataFrame]:
    table, rows, order = [], [], []
    effective = head.effective[list(queries)]
    for place, query in enumerate(queries):
        weights = head.attention[query]
        visible = None if head.visible is None else head.visible[query]
        found = certify_row(weights, head.projected, visible=visible, pin_tolerance=pin_tolerance)
        least = minimum_norm_alternative(weights, head.projected, visible=visible).point
        bounds = found.intervals
        seen = range(len(weights)) if visible is None else torch.nonzero(visible).flatten().tolist()
        columns = [part.tolist() for part in (weights, bounds.lo, bounds.hi, bounds.pinned, effective[place], least)]
        table += [(*address, query, key, *(column[key] for column in columns)) for key in seen]
        pairs = torch.nonzero(found.above).tolist()
        order += [(*address, query, above, below) for above, below in pairs]
        count = len(seen) * (len(seen) - 1) // 2
        rows.append((*address, query, bounds.nullity, found.top, len(pairs), count, bounds.gap))
    tokens = [
        (address[0], address[3], side, position, name)
        for (side, sequence), size in zip(
            sides(address[3], item.tokens)._asdict().items(), head.attention.shape, strict=True
        )
        for position, name in enumerate(names_at(item.tokens, sequence, size, lens.model.config))
    ]
    content = {"table": table, "rows": rows, "order": order, "tokens": tokens}
    return {name: pl.DataFrame(content[name], schema=schema, orient="row") for name, schema in TABLES.items()}
