"""Heads of texts: which ones a study looks at, each with its place in the tables."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from annotated_types import Ge

from identilens.errors import InputError
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.sending import send_lens
from identilens.models.sequences import names_at, position_names, sides
from identilens.runs.corpus import Corpus
from identilens.runs.files import write_folder
from identilens.runs.matrices import MatrixKey
from identilens.runs.provenance import Identity
from identilens.runs.settings import REPEATED, Kind, Numbers, Settings
from identilens.runs.study import Output, R, S, Study
from identilens.studies.items import identities, read_items

_ROWS = 8
"""Rows in one part: what an interruption can cost."""


@dataclass(frozen=True, kw_only=True)
class HeadSettings(Settings):
    """Which heads.

    Attributes:
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        max_length: Cut longer texts to this many tokens.
    """

    layers: Numbers | None = None
    heads: Numbers | None = None
    max_length: Annotated[int | None, Ge(1)] = None


@dataclass(frozen=True, kw_only=True)
class KindSettings(HeadSettings):
    """Which heads, of every kind of attention.

    Attributes:
        kind: Kind of attention; all kinds of the model by default. Layers count from 0 within each kind.
    """

    kind: Kind | None = None


@dataclass(frozen=True, kw_only=True)
class RowSettings(KindSettings):
    """Which rows of which heads.

    Attributes:
        queries: Position or token of a row; all rows by default. A token selects every position where it occurs.
    """

    queries: Annotated[tuple[int | str, ...], REPEATED] | None = None


@dataclass(frozen=True)
class Place:
    """One head of one layer on one text, by their numbers."""

    text: int
    site: Site
    head: int

    @property
    def row(self) -> dict[str, Any]:
        """The columns of a table that name it."""
        return {"text": self.text, "layer": self.site.layer, "head": self.head, "kind": self.site.kind}

    def key(self, name: str) -> str:
        """Return the name of a matrix of it."""
        return str(MatrixKey(**self.row, name=name))


@dataclass(frozen=True)
class TextHeads:
    """The texts of a study and the places that it looks at, text by text."""

    lens: Lens
    items: Sequence[Item]
    places: Sequence[Place]

    @classmethod
    def of(cls, lens: Lens, items: Sequence[Item], settings: HeadSettings, kind: Kind | None) -> "TextHeads":
        """Return the heads that settings choose, of one kind of attention or of every one that the model has.

        Raises:
            InputError: If the model lacks one of them.
            UnsupportedModelError: If the model's attention cannot be captured faithfully.
        """
        chosen = list(chosen_heads(lens.sites(items[0]), settings.layers, settings.heads, kind))
        return cls(lens, items, [Place(text, *one) for text in range(len(items)) for one in chosen])

    def read(self, place: Place) -> Head:
        """Return a head as it computes on its text."""
        return read_head(self.lens, self.items[place.text], place.site.layer, place.head, place.site.kind)

    def tokens(self, head: Head, text: int) -> dict[str, tuple[str, ...]]:
        """Return what stands at each position of a text, by sequence; a head's own where they are no tokens."""
        held, config = self.items[text].tokens, self.lens.model.config
        read = dict(zip(sides(head.kind, held), (len(head.queries), len(head.keys)), strict=True))
        sizes = {sequence: len(names) for sequence, names in held.items()} | read
        return {sequence: names_at(held, sequence, size, config) for sequence, size in sizes.items()}

    def requested(self, place: Place, queries: Sequence[int | str] | None) -> list[int]:
        """Return the positions of the rows that are asked for by position or token; every row for None.

        Raises:
            InputError: If the text has no such query.
        """
        tokens = self.items[place.text].tokens
        names = tokens.get(sides(place.site.kind, tokens).query, ())
        if not names:  # an image's positions show only in the model
            names = position_names(self.lens.model.config, len(self.read(place).queries))
        if queries is None:
            return list(range(len(names)))
        return sorted({at for one in queries for at in named_places(names, one, place.text)})


class LensStudy(Study[S, R]):
    """A study of a model on texts: workers load the model by its path."""

    def sent(self, folder: Path) -> tuple[Any, ...]:
        """Return the model as its path, and the texts as they are, or very many as a file in the folder."""
        lens, *others = self.inputs
        texts = [one.sent(folder) if isinstance(one, Corpus) else one for one in others]
        return (send_lens(lens, folder, write_folder), *texts)


class HeadStudy(LensStudy[S, R]):
    """A study of the heads of texts, one per part."""

    unit = "heads"
    heads: TextHeads

    def identity(self) -> Identity:
        """Return the model and the texts."""
        return Identity(self.heads.lens.facts, identities(self.heads.items))

    def sizes(self) -> Sequence[int]:
        """Return one head for each part."""
        return [1] * len(self.heads.places)


W = TypeVar("W", bound=RowSettings)


class RowStudy(HeadStudy[W, R]):
    """A study of single rows of the attention of heads, a few of one head a part.

    A head is read once for all of its parts.
    """

    unit = "rows"
    joins = "audit"

    def __init__(self, lens: Lens, texts: Any, settings: W) -> None:
        super().__init__(settings)
        self.heads = TextHeads.of(lens, read_items(lens, texts, settings.max_length), settings, settings.kind)
        # Heads of a layer have the same queries, which may take a run of the model to know.
        layers = {(place.text, place.site): place for place in self.heads.places}
        rows = {layer: self.heads.requested(place, settings.queries) for layer, place in layers.items()}
        self.parts = [
            (place, own[at : at + _ROWS])
            for place in self.heads.places
            for own in [rows[place.text, place.site]]
            for at in range(0, len(own), _ROWS)
        ]
        self._read: tuple[Place, Head] | None = None

    def sizes(self) -> Sequence[int]:
        """Return a few rows for each part."""
        return [len(rows) for _, rows in self.parts]

    def run(self, part: int) -> Output:
        """Return the tables of some rows of one head on one text."""
        place, queries = self.parts[part]
        if self._read is None or self._read[0] is not place:
            self._read = place, self.heads.read(place)
        return self.output(place, self._read[1], queries)

    @abstractmethod
    def output(self, place: Place, head: Head, queries: Sequence[int]) -> Output:
        """Return the tables of some rows of a head."""


def named_places(names: Sequence[str], requested: int | str, text: int) -> list[int]:
    """Return the positions that a token or a position stands for."""
    places = [place for place, name in enumerate(names) if name == requested]
    if not places and str(requested).isdigit() and int(requested) < len(names):
        places = [int(requested)]
    if not places:
        raise InputError(
            f"text {text} has no token or position {requested!r} among its {len(names)} queries; its tokens are "
            f"{' '.join(names[:12])}{' …' if len(names) > 12 else ''}"
        )
    return places
