"""The sequences of queries and keys for each kind of attention, and the names of their positions."""

from collections.abc import Container, Mapping
from typing import Any, Literal, NamedTuple

Kind = Literal["encoder", "decoder", "cross"]
"""Kind of attention: ``encoder`` sees keys on both sides, ``decoder`` only earlier keys, ``cross`` another sequence."""


class Sides(NamedTuple):
    """The sequences of queries and keys: "encoder" (or the only one) or "decoder"."""

    query: str
    key: str


def sides(kind: Kind, sequences: Container[str]) -> Sides:
    """Return the sequences of queries and keys of a kind of attention."""
    query = "decoder" if "decoder" in sequences and kind != "encoder" else "encoder"
    return Sides(query, "encoder" if kind == "cross" else query)


def names_at(
    tokens: Mapping[str, tuple[str, ...]], sequence: str, positions: int, config: Any
) -> tuple[str, ...]:
    """Return the tokens at the positions of a sequence, or names of positions if they are not tokens."""
    names = tokens.get(sequence, ())
    return names if len(names) == positions else position_names(config, positions)


def position_names(config: Any, positions: int) -> tuple[str, ...]:
    """Return names for positions that are not tokens: the class token and the patches of an image."""
    size, patch = getattr(config, "image_size", None), getattr(config, "patch_size", None)
    if isinstance(size, int) and isinstance(patch, int) and positions == (size // patch) ** 2 + 1:
        side = size // patch
        return (
            "[CLS]",
            *(f"patch {row},{column}" for row in range(side) for column in range(side)),
        )
    return tuple(f"position {index}" for index in range(positions))
