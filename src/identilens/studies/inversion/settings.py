"""Options of inversion."""

from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Annotated, Literal

from annotated_types import Ge, Le

from identilens.errors import SettingError
from identilens.runs.settings import (
    LIST,
    NonNegative,
    Numbers,
    Part,
    Positive,
    Settings,
)


@dataclass(frozen=True, kw_only=True)
class InversionSettings(Settings):
    """What is stored of a text, how coarsely, and what counts as certain.

    Attributes:
        layers: Layers whose states are read: 0 (embedding output) to L, for a cache 0 to L - 1. All by default.
        noise: How states are stored or released: bfloat16, float16, float32, int8 (one scale for each token; 2 to 16
            bits), int8-channel, drop0.1 (share of dimensions set to 0), or the relative size of Gaussian noise.
        bits: Numbers of bits that are tried in any case, with one scale for each token.
        stored: What is stored: hidden states (states), or keys and values of each layer (cache).
        risk: Largest probability with which Gaussian noise may spoil a certified text.
        substitutes: Tokens tried in place of each token of an encoder's text, those with the nearest embeddings.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of random noise.
    """

    layers: Numbers | None = None
    noise: Annotated[tuple[str | float, ...], LIST] = ("bfloat16", "int8", "int4", "0.01")
    bits: Annotated[Numbers, Ge(2), Le(16)] = (2, 3, 4, 5, 6, 7, 8)
    stored: Literal["states", "cache"] = "states"
    risk: Part = 1e-3
    substitutes: Positive = 64
    max_length: Positive | None = None
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that every noise can be read, and write it in one way."""
        read = resolve_name("identilens.measures.tokens.margins:Noise").read
        names = dict.fromkeys(read(text).name for text in self.noise)
        object.__setattr__(self, "noise", tuple(names))
        if not (names or self.bits):
            raise SettingError("noise", "with at least one value", ())
