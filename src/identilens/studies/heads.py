"""Heads of texts: which ones a study looks at, each with its place in the tables."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import polars as pl

from identilens.errors import InputError
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.loading import load
from identilens.models.sequences import names_at, position_names, sides
from identilens.runs.matrices import MatrixKey
from identilens.runs.provenance import Identity
from identilens.runs.settings import parse_numbers
from identilens.runs.study import R, S, Study
from identilens.runs.tables import Columns, Row, Tables
from identilens.studies.items import Items


@dataclass(frozen=True)
class Place:
    """One head of one layer on one text, by their numbers."""

    text: int
    site: Site
    head: int

    @property
    def row(self) -> Row:
        """The columns of a table that name it."""
        return {
            "text": self.text,
            "layer": self.site.layer,
            "head": self.head,
            "kind": self.site.kind,
        }

    def key(self, name: str) -> str:
        """Return the name of a matrix of it."""
        return str(MatrixKey(**self.row, name=name))


class LensStudy(Study[S, R]):
    """A study of a model on texts: tasks of a cluster load the model by its path."""

    def sent(self) -> Sequence[Any]:
        """Return the model as its path, and the texts as they are."""
        lens, *others = self.inputs
        return [lens_reference(lens), *others]


class TextStudy(LensStudy[S, R]):
    """A study of whole texts: each text is a part."""

    items: Items

    def __init__(self, lens: Lens, texts: Any, settings: S) -> None:
        super().__init__(settings)
        options: Any = settings
        self.lens, self.items = lens, Items(lens, texts, options.max_length)
        self.parts = self.items
        self.check_rows()

    def check_rows(self) -> None:
        """Check that the texts have the rows that are asked for; see `check_asked`."""
        check_asked(self.items, getattr(self.settings, "queries", None))

    def identity(self) -> Identity:
        """Return the model and the texts."""
        return Identity(self.lens.facts, self.items.digests)

    @cached_property
    def chosen(self) -> Sequence[tuple[Site, int]]:
        """The heads that settings name, of one kind of attention or of every one that the model has.

        Raises:
            InputError: If the model lacks one of them.
            UnsupportedModelError: If the model's attention cannot be captured faithfully.
        """
        sites, settings = self.lens.sites(self.items[0]), self.settings
        names = "layers", "heads", "kind"
        return list(chosen_heads(sites, *(getattr(settings, name) for name in names)))

    def places(self, text: int) -> list[Place]:
        """Return the chosen heads on a text."""
        return [Place(text, site, head) for site, head in self.chosen]

    def read(self, item: Item, head: Place, rows: Sequence[int] | None = None) -> Head:
        """Return a head as it computes on a text, with the weights of all its rows or of some.

        Raises:
            InputError: If the head has an attention sink.
        """
        layer = self.lens.layer(item, head.site.layer, head.site.kind, rows)
        captured = layer.head(head.head)
        captured.refuse_sink()
        return captured

    def tokens(self, item: Item, head: Head) -> dict[str, tuple[str, ...]]:
        """Return what stands at each position of a text, by sequence; a head's own where they are no tokens."""
        known, config = item.tokens, self.lens.model.config
        counted = zip(sides(head.kind, known), map(len, (head.queries, head.keys)), strict=True)
        return known | {side: names_at(known, side, count, config) for side, count in counted}

    def requested(self, item: Item, head: Place, queries: Sequence[int | str] | None) -> list[int]:
        """Return the positions of the rows that are asked for by position or token; every row for None."""
        names = item.tokens.get(sides(head.site.kind, item.tokens).query, ())
        if not names:  # an image's positions show only in the model
            count = len(self.read(item, head).queries)
            names = position_names(self.lens.model.config, count)
        return asked_places(names, queries)


def shaped(columns: Columns, parts: Iterable[Any]) -> pl.DataFrame:
    """Return a table from frames, columns or rows; a column that none of them has, and NaN, is null."""
    known = [pl.DataFrame(part, infer_schema_length=None) for part in parts]
    table = pl.concat([pl.DataFrame(schema=columns), *known], how="diagonal_relaxed")
    return table.select(*columns).cast({**columns}).fill_nan(None)


def filled(schema: Mapping[str, Columns], parts: Mapping[str, Iterable[Any]]) -> Tables:
    """Return the tables of a schema from parts of each, as `shaped` does."""
    return {name: shaped(columns, parts.get(name, ())) for name, columns in schema.items()}


def check_asked(items: Sequence[Item], asked: Sequence[int | str] | None) -> None:
    """Check that some text has each of the rows that are asked for.

    Raises:
        InputError: For a token or position that no text has.
    """
    texts = [names for item in items for names in item.tokens.values()] if asked else []
    for row in asked or ():
        # An image's positions show only in the model.
        if texts and not any(_places(names, row) for names in texts):
            named_places(texts[0], row, 0)  # says what there is


def asked_places(names: Sequence[str], asked: Iterable[int | str] | None) -> list[int]:
    """Return the positions that some of the tokens or positions stand for, in order; all for None."""
    if asked is None:
        return list(range(len(names)))
    return sorted({index for row in asked for index in _places(names, row)})


def named_places(names: Sequence[str], requested: int | str, text: int) -> list[int]:
    """Return the positions that a token, a position, or numbers such as 3,10-12 stand for; negative ones from the end.

    A token goes before a position of the same name, but ``last`` is always the last position. A token's space at the
    start of a word may be left out. A word of several tokens, or several words, stand for all their tokens, where they
    begin and end with one.

    Raises:
        InputError: If there is none.
    """
    if places := _places(names, requested):
        return places
    raise InputError(
        f"text {text} has no token or position {requested!r} among its {len(names)} queries; its first tokens are "
        f"{' '.join(names[:12])}. Repeat the option to name several."
    )


def _places(names: Sequence[str], requested: int | str) -> list[int]:
    """Return the positions of `named_places`, none where a text has none."""
    requested = -1 if requested == "last" else requested
    places = {index for index, name in enumerate(names) if requested in (name, name.strip())}
    words = requested.strip() if isinstance(requested, str) else ""
    if words:
        spaced = any(name != name.strip() for name in names)
        pieces = [name if spaced else f" {name}".replace(" ##", "") for name in names]
        # A zero before each token: the words may run over several, from the start of one to the end of another.
        text = "".join(f"\0{piece}" for piece in pieces) + "\0"
        run = "\0?".join(map(re.escape, words))
        start, end = r"((?<!\w)\0|\0\s)\s*", r"(\s+(?=\0)|(?=\0(?!\w)))"
        for match in re.finditer(start + run + end, text):
            first = text.count("\0", 0, match.start())
            places.update(range(first, first + match[0].count("\0")))
    with suppress(ValueError, IndexError):
        numbers = [] if places else parse_numbers(str(requested))
        places.update([range(len(names))[number] for number in numbers])
    return sorted(places)


@dataclass(frozen=True)
class LensReference:
    """The path of a model and how it was loaded, from which a lens is created in another process.

    Attributes:
        name: Name of the model.
        options: Arguments of `load`, the hub id or folder among them.
        gpus: Number of GPUs that it is on.
    """

    name: str
    options: dict[str, Any]
    gpus: int = 0

    def restored(self) -> Lens:
        """Return the lens."""
        lens = load(**self.options)
        lens.name = self.name
        return lens


def lens_reference(lens: Lens) -> LensReference:
    """Return the data that create the lens in another process.

    Raises:
        InputError: If the model was made in memory.
    """
    if not lens.model.name_or_path:
        raise InputError(
            "tasks of a cluster load the model by its path, and this one was made in memory. Save it "
            "(model.save_pretrained(folder), and its tokenizer), and load it with identilens.load(folder)."
        )
    config = lens.model.config
    options = {
        "model": lens.model.name_or_path,
        "dtype": lens.dtype,
        "device": lens.device,
        "device_map": getattr(lens.model, "hf_device_map", None),
        "revision": getattr(config, "_commit_hash", None),
        "attn_implementation": config._attn_implementation,
        "trust_remote_code": type(lens.model).__module__.startswith("transformers_modules"),
        "quantization": getattr(config, "quantization_config", None),
    }
    gpus = {tensor.device for tensor in lens.model.parameters() if tensor.is_cuda}
    return LensReference(lens.name, options, len(gpus))
