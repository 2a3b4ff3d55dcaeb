"""Lengths at which a model changes its rotary positions: texts on both sides of one must not share a batch."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from identilens.models.inputs import Item


class Limit(NamedTuple):
    """A length up to which the frequencies of positions stay the same; ``growing``: beyond it, each has its own."""

    length: int
    growing: bool


def length_limits(config: Any) -> list[Limit]:
    """Return the lengths at which the longest text of a batch changes the positions of all.

    Beyond ``original_max_position_embeddings``, LongRoPE has other frequencies. Those of rope types named dynamic
    depend on every length beyond ``max_position_embeddings``.
    """
    return list(_limits(config.to_dict(), 0))


def _limits(fields: Mapping[Any, Any], outer: int) -> Iterator[Limit]:
    longest = fields.get("max_position_embeddings") or outer
    if trained := fields.get("original_max_position_embeddings"):
        yield Limit(trained, False)
    if "dynamic" in str(fields.get("rope_type") or fields.get("type")):
        yield Limit(longest, True)
    for value in fields.values():
        if isinstance(value, Mapping):
            yield from _limits(value, longest)


def length_class(item: Item, limits: Sequence[Limit]) -> list[int]:
    """Return numbers that are equal for texts whose positions have the same frequencies."""
    ids = [
        tensor
        for name, tensor in item.tensors.items()
        if name.endswith("position_ids") and tensor.numel()
    ]
    length = max((int(tensor.max()) + 1 for tensor in ids), default=item.length)
    return [
        max(length, limit.length) if limit.growing else int(length > limit.length)
        for limit in limits
    ]


def apart(items: Sequence[Item], limits: Sequence[Limit]) -> bool:
    """Return whether texts must not share a batch: inputs of other shapes, or other positions than alone."""
    return len({(item.shapes, *length_class(item, limits)) for item in items}) > 1
