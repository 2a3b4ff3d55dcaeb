"""Tables of the documentation: settings of a study, model types that were tried, figures of papers beside ours."""

import inspect
import re
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, astuple, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import polars as pl
from annotated_types import Ge, Gt, Le, Lt

from identilens.runs.settings import Settings, hints_of
from identilens.runs.tables import markdown_table

DOCS = Path(__file__).parents[1] / "docs"
FAMILIES = DOCS / "results" / "families.csv"
STORED = DOCS / "results" / "reproductions.toml"
HEAD = """\
<div class="settings" markdown>

| setting | type | default | range | what it is |
|---|---|---|---|---|
"""
_SIGNS = {Ge: "≥", Gt: ">", Le: "≤", Lt: "<"}
_WORDS = {int: "whole number", float: "number", bool: "yes or no", str: "text", Path: "path"}


def settings_table(*kinds: type[Settings]) -> str:
    """Return the fields of settings dataclasses as one table, in their order."""
    rows = "".join(
        row(field, hints_of(kind)[field.name], told(kind)[field.name])
        for kind in kinds
        for field in fields(kind)  # pyright: ignore[reportArgumentType] - every settings class is a dataclass
    )
    return f"{HEAD}{rows}\n</div>"


def row(field: Any, hint: Any, words: str) -> str:
    """Return the row of a setting.

    Raises:
        ValueError: For a setting whose docstring says nothing of it.
    """
    if not words:
        raise ValueError(f"the docstring of its class does not say what {field.name} is")
    kind, metadata, _ = resolved(hint)
    cells = [f"`{field.name}`", type_words(kind, metadata), default(field)]
    cells += [limits(kind, metadata), words]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def resolved(hint: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Return the type of an annotation without None, its metadata, and whether it may be None."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        kind, more, optional = resolved(inner)
        return kind, (*metadata, *more), optional
    options = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    if NoneType not in options:
        return hint, (), False
    inner: Any = Union[tuple(one for one in options if one is not NoneType)]  # noqa: UP007 - made of a list
    return *resolved(inner)[:2], True


def type_words(kind: Any, metadata: Sequence[Any]) -> str:
    """Return the type of a setting in words."""
    if get_origin(kind) is tuple:
        inner, more, _ = resolved(get_args(kind)[0])
        return f"list: {type_words(inner, more)}"
    if get_origin(kind) is Literal:
        return "choice"
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(dict.fromkeys(type_words(one, ()) for one in get_args(kind)))
    return _WORDS.get(kind, "as described")


def default(field: Any) -> str:
    """Return the default of a setting as it is typed."""
    value = field.default if field.default is not MISSING else field.default_factory
    if value is MISSING:
        return "**required**"
    if value is None or value == ():
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    values = value if isinstance(value, tuple) else (value,)
    return ", ".join(f"`{one:g}`" if isinstance(one, float) else f"`{one}`" for one in values)


def limits(kind: Any, metadata: Sequence[Any]) -> str:
    """Return the range of a setting, or its choices."""
    if get_origin(kind) is tuple:
        inner, more, _ = resolved(get_args(kind)[0])
        return limits(inner, (*metadata, *more))
    if get_origin(kind) is Literal:
        return ", ".join(f"`{one}`" for one in get_args(kind))
    bounds = [bound for bound in metadata if type(bound) in _SIGNS]
    return ", ".join(f"{_SIGNS[type(bound)]} {astuple(bound)[0]}" for bound in bounds)


def told(kind: type) -> dict[str, str]:
    """Return what the docstrings of a settings class, and of those that it extends, say of each field."""
    words: dict[str, str] = {field.name: "" for field in fields(kind)}
    for one in reversed(kind.__mro__):
        if is_dataclass(one):
            words |= sections(inspect.cleandoc(one.__doc__ or "").partition("Attributes:\n")[2])
    return words


def sections(block: str) -> dict[str, str]:
    """Return the entries ``name: words`` of a docstring's section, in which longer ones go on further in."""
    entries: dict[str, str] = {}
    for name, words in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", block, re.MULTILINE):
        entries[name] = " ".join(words.split())
    return entries


OUTCOMES = {
    "served": "captured with proof",
    "refused": "an error says why, and what to do",
    "no attention": "refused: the model has no softmax",
    "part": "a part of other models, tried within them",
    "not built": "no tiny model of it could be made and run here, so nothing is known; try your own model",
    "crash": "a defect: an error that is not clear",
    "wrong": "a defect: other weights than the family's own",
}
"""What became of a model type that was tried, and what that means."""

FAMILIES_OPENING = """# Families: every model type of transformers

A tiny random model of each of the {types} model types of transformers {version}, made from the names in its default
configuration, is run on random token ids (ragged, padded on either side), random pixels and random samples, whichever
it takes. Capture has to prove itself on it. `make families` tries them again; `identilens selfcheck --list` prints
those that are served.

Of the served types, {compared} give weights of their own for each text alone with `output_attentions`; captured weights
differ from them by at most {worst:.0e}.
"""


def families_page() -> str:
    """Return the page of the model types that were tried."""
    trials = pl.read_csv(FAMILIES)
    opening = FAMILIES_OPENING.format(
        types=len(trials),
        version=trials["transformers"][0],
        compared=trials["difference"].count(),
        worst=trials["difference"].max(),
    )
    sizes = pl.col("difference").map_elements("{:.0e}".format, return_dtype=pl.String)
    trials = trials.with_columns(sizes)
    counts = {name: len(trials.filter(outcome=name)) for name in OUTCOMES}
    lines = ["| outcome | types | meaning |", "|---|---|---|"]
    lines += [f"| {name} | {counts[name]} | {words} |" for name, words in OUTCOMES.items()]
    parts = [opening, "\n".join(lines)]
    for name in OUTCOMES:
        rows = trials.filter(outcome=name).drop("outcome", "transformers")
        columns = [one.name for one in rows if one.null_count() < len(rows)]
        if columns:
            parts.append(f"## {name.capitalize()}\n\n{markdown_table(rows.select(columns))}")
    return "\n\n".join(parts)


VERDICTS = {
    "agrees": "the number, or the paper's claim where it prints none, is confirmed by the measured number",
    "partly": "a part is confirmed, another is not",
    "differs": "the measured number contradicts the published one",
    "no number": "the paper gives a picture, or its number is lost; only ours is given",
    "not run": "not run, or not in the paper's setting, for the reason given",
    "illustration": "nothing was measured in the paper",
}

REPRODUCTIONS_OPENING = """# Reproductions

Every figure and table of the first four papers below, and one measurement each of the last two, published beside
measured. Layers are counted from 1, as in the papers. Brunner et al. measured BERT-base (12 layers, d_v = 64); the
measured numbers are of the bundled encoder (6 layers, d_v = 32), so that claims can agree and numbers need not.
The commands take any model (`--model bert-base-uncased`; the default is the bundled encoder); their other defaults are
the paper's settings where it states them. The linked pages say in which settings the numbers here were measured.

The folder of `--data` (default: `data`) holds mrpc/dev.tsv.xz, cola/dev.tsv, mnli/dev_matched.tsv.xz,
ud_ewt/en_ewt-ud-test.conllu.xz and wiki_en/segments_1000.jsonl.xz; fine-tuning also needs train.tsv.xz in mrpc, cola
and sst, and sst/dev.tsv.xz. The commands of Bhardwaj et al. read the files of their tasks ([tasks](encoder.md#tasks)).
"""


def stored_rows() -> list[dict[str, str]]:
    """Return the stored rows."""
    return tomllib.loads(STORED.read_text(encoding="utf-8"))["row"]


def figures_page() -> str:
    """Return docs/reproductions.md: every figure and table of the papers, published beside measured."""
    rows = stored_rows()
    counts = {name: sum(row["verdict"] == name for row in rows) for name in VERDICTS}
    meanings = "\n".join(
        f"- **{name}** ({counts[name]}): {words}" for name, words in VERDICTS.items()
    )
    parts = [REPRODUCTIONS_OPENING + "\n" + meanings]
    for paper in dict.fromkeys(row["paper"] for row in rows):
        lines = [
            "| | what | published | measured | verdict | command |",
            "|---|---|---|---|---|---|",
        ]
        lines += [_line(row) for row in rows if row["paper"] == paper]
        parts.append(f"## {paper}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _line(row: dict[str, str]) -> str:
    verdict = f"[{row['verdict']}]({row['page']})" if row["page"] else row["verdict"]
    command = f"`{row['command']}`" if row["command"] else ""
    return f"| {row['item']} | {row['what']} | {row['published']} | {row['ours']} | {verdict} | {command} |"
