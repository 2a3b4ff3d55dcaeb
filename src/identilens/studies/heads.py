"""Heads of texts: which ones a study looks at, each with its place in the tables."""

import re
from bisect import bisect, bisect_left
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
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
from identilens.runs.settings import Kind, parse_numbers
from identilens.runs.study import Output, R, S, Study
from identilens.runs.tables import Columns, Row, Tables
from identilens.studies.items import Items, read_items
from identilens.studies.settings import HeadSettings


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


@dataclass(frozen=True)
class TextHeads:
    """The texts of a study, and the heads that it looks at on each.

    Attributes:
        lens: The model.
        items: The texts.
        chosen: The heads.
    """

    lens: Lens
    items: Sequence[Item]
    chosen: Sequence[tuple[Site, int]] = ()

    @classmethod
    def of(
        cls, lens: Lens, items: Sequence[Item], settings: HeadSettings, kind: Kind | None
    ) -> "TextHeads":
        """Return the heads that settings choose, of one kind of attention or of every one that the model has.

        Raises:
            InputError: If the model lacks one of them.
            UnsupportedModelError: If the model's attention cannot be captured faithfully.
        """
        sites = lens.sites(items[0])
        return cls(lens, items, list(chosen_heads(sites, settings.layers, settings.heads, kind)))

    def places(self, text: int) -> list[Place]:
        """Return the heads on a text."""
        return [Place(text, site, head) for site, head in self.chosen]

    def read(self, place: Place, rows: Sequence[int] | None = None) -> Head:
        """Return a head as it computes on its text, with the weights of all its rows or of some.

        Raises:
            InputError: If the head has an attention sink.
        """
        item, site = self.items[place.text], place.site
        head = self.lens.layer(item, site.layer, site.kind, rows).head(place.head)
        head.refuse_sink()
        return head

    def tokens(self, head: Head, text: int) -> dict[str, tuple[str, ...]]:
        """Return what stands at each position of a text, by sequence; a head's own where they are no tokens."""
        sequences, config = self.items[text].tokens, self.lens.model.config
        query, key = sides(head.kind, sequences)
        return {
            **sequences,
            query: names_at(sequences, query, len(head.queries), config),
            key: names_at(sequences, key, len(head.keys), config),
        }

    def requested(self, place: Place, queries: Sequence[int | str] | None) -> list[int]:
        """Return the positions of the rows that are asked for by position or token; every row for None."""
        tokens = self.items[place.text].tokens
        names = tokens.get(sides(place.site.kind, tokens).query, ())
        if not names:  # an image's positions show only in the model
            names = position_names(self.lens.model.config, len(self.read(place).queries))
        if queries is None:
            return list(range(len(names)))
        return asked_places(names, queries)


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
        self.lens, self.items = lens, read_items(lens, texts, options.max_length)
        self.check_rows()

    def check_rows(self) -> None:
        """Check that the texts have the rows that are asked for; see `check_asked`."""
        check_asked(self.items, getattr(self.settings, "queries", None))

    def identity(self) -> Identity:
        """Return the model and the texts."""
        return Identity(self.lens.facts, self.items.digests)

    def sizes(self) -> Sequence[int]:
        """Return one text for each part."""
        return [1] * len(self.items)


class HeadStudy(TextStudy[S, R]):
    """A study of the heads of texts: a head on a text is a part."""

    unit = "heads"

    def __init__(self, lens: Lens, texts: Any, settings: S) -> None:
        super().__init__(lens, texts, settings)
        options: Any = settings
        self.heads = TextHeads.of(lens, self.items, options, options.kind)

    def sizes(self) -> Sequence[int]:
        """Return one head for each part."""
        return [1] * len(self.items) * len(self.heads.chosen)

    def place(self, part: int) -> Place:
        """Return the head of a part, text after text."""
        text, number = divmod(part, len(self.heads.chosen))
        return Place(text, *self.heads.chosen[number])


def shaped(columns: Columns, parts: Iterable[Any]) -> pl.DataFrame:
    """Return a table from frames, columns or rows; a column that none of them has, and NaN, is null."""
    known = [pl.DataFrame(part, infer_schema_length=None) for part in parts]
    table = pl.concat([pl.DataFrame(schema=pl.Schema(columns)), *known], how="diagonal_relaxed")
    return table.select(*columns).cast(pl.Schema(columns)).fill_nan(None)


def filled(schema: Mapping[str, Columns], parts: Mapping[str, Iterable[Any]]) -> Tables:
    """Return the tables of a schema from parts of each, as `shaped` does."""
    return {name: shaped(columns, parts.get(name, ())) for name, columns in schema.items()}


def joined(schema: Mapping[str, Columns], outputs: Iterable[Output]) -> Output:
    """Return several outputs of a part as one, with all tables also where there are none."""
    return Output.joined([Output(filled(schema, {})), *outputs])


def check_asked(items: Sequence[Item], asked: Sequence[int | str] | None) -> None:
    """Check that some text has each of the rows that are asked for.

    Raises:
        InputError: For a token or position that no text has.
    """
    texts = [list(filter(None, item.tokens.values())) for item in items] if asked else []
    if not all(texts):  # an image's positions show only in the model
        return
    for one in asked or ():
        if not any(asked_places(names, [one]) for sequences in texts for names in sequences):
            named_places(texts[0][0], one, 0)  # says what there is


def asked_places(names: Sequence[str], asked: Iterable[int | str]) -> list[int]:
    """Return the positions that some of the tokens or positions stand for, in order; see `named_places`."""
    places: set[int] = set()
    for one in asked:
        with suppress(InputError):
            places.update(named_places(names, one, 0))
    return sorted(places)


def named_places(names: Sequence[str], requested: int | str, text: int) -> list[int]:
    """Return the positions that a token, a position, or numbers such as 3,10-12 stand for; negative ones from the end.

    A token goes before a position of the same name, but ``last`` is always the last position. A token's space at the
    start of a word may be left out. A word of several tokens, or several words, stand for all their tokens, where they
    begin and end with one.
    """
    requested = -1 if requested == "last" else requested
    places = [place for place, name in enumerate(names) if requested in (name, name.strip())]
    if isinstance(requested, str) and requested.strip():
        words = re.escape(requested.strip())
        spaced = any(name != name.strip() for name in names)
        pieces = [name if spaced else f" {name}".replace(" ##", "") for name in names]
        ends, text_read = [0, *accumulate(map(len, pieces))], "".join(pieces)
        for match in re.finditer(rf"(?<!\w){words}(?!\w)", text_read):
            first, last = bisect(ends, match.start()) - 1, bisect_left(ends, match.end())
            around = text_read[ends[first] : match.start()] + text_read[match.end() : ends[last]]
            places += range(first, last) if not around.strip() else ()
        places = sorted({*places})
    if not places:
        with suppress(ValueError):
            numbers = parse_numbers(str(requested))
            inside = all(-len(names) <= one < len(names) for one in numbers)
            places = [one % len(names) for one in numbers if inside]
    if not places:
        raise InputError(
            f"text {text} has no token or position {requested!r} among its {len(names)} queries; its tokens are "
            f"{' '.join(names[:12])}{' …' if len(names) > 12 else ''}. Repeat the option to name several."
        )
    return places


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
    facts = lens.facts
    options = {
        "model": lens.model.name_or_path,
        "dtype": facts["dtype"],
        "revision": facts["revision"],
        "attn_implementation": lens.model.config._attn_implementation,
        "trust_remote_code": type(lens.model).__module__.startswith("transformers_modules"),
        "quantization": getattr(lens.model.config, "quantization_config", None),
    }
    # Parts in one place are put there, like any other model.
    parts = getattr(lens.model, "hf_device_map", None) or {}
    several = len(set(parts.values())) > 1
    options |= {"device_map": parts} if several else {"device": facts["device"]}
    gpus = {each.device for each in lens.model.parameters() if each.device.type == "cuda"}
    return LensReference(lens.name, options, len(gpus))
