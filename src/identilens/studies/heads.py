"""Heads of texts: which ones a study looks at, each with its place in the tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge

from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.sequences import names_at, sides
from identilens.runs.matrices import MatrixKey
from identilens.runs.provenance import Identity
from identilens.runs.settings import Kind, Numbers, Settings
from identilens.runs.study import R, S, Study


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
        kind: Kind of attention; every one that the model has by default. Layers count from 0 within each.
    """

    kind: Kind | None = None


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


class HeadStudy(Study[S, R]):
    """A study of the heads of texts, one a part."""

    unit = "heads"
    heads: TextHeads

    def identity(self) -> Identity:
        """Return the model and the texts."""
        return Identity(self.heads.lens.facts, [item.identity for item in self.heads.items])

    def sizes(self) -> Sequence[int]:
        """Return one head for each part."""
        return [1] * len(self.heads.places)
