"""Which sequence queries and keys of each kind of attention come from, and what stands at its positions."""

from collections.abc import Container, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["encoder", "decoder", "cross"]
"""Of attention: ``encoder`` sees both ways, ``decoder`` only backwards, ``cross`` another sequence."""


class Sides(NamedTuple):
    """The sequences, "encoder" (or the only one) or "decoder", that queries and keys come from."""

    query: str
    key: str


def sides(kind: Kind, sequences: Container[str]) -> Sides:
    """Return which of a text's sequences a kind of attention reads."""
    query = "decoder" if "decoder" in sequences and kind != "encoder" else "encoder"
    return Sides(query, "encoder" if kind == "cross" else query)


def names_at(tokens: Mapping[str, tuple[str, ...]], sequence: str, positions: int, config: Any) -> tuple[str, ...]:
    """Return what stands at the positions of a sequence: its tokens, or names where it is not made of tokens."""
    found = tokens.get(sequence, ())
    return found if len(found) == positions else position_names(config, positions)


def position_names(config: Any, positions: int) -> tuple[str, ...]:
    """Return names for positions that are not tokens: the class token and the patches of an image."""
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if isinstance(size, int) and isinstance(patch, int) and positions == (size // patch) ** 2 + 1:
        side = size // patch
        return ("[CLS]", *(f"patch {row},{column}" for row in range(side) for column in range(side)))
    return tuple(f"position {index}" for index in range(positions))
