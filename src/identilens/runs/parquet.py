"""The size to which a parquet file expands, read from its page headers before anything is decompressed."""

import io
from collections.abc import Collection
from typing import Any

_SMALLEST = 12
"""Bytes of a parquet file that contains nothing."""


def expanded(stream: io.BufferedIOBase, columns: Collection[str] | None = None) -> tuple[int, int]:
    """Return the bytes of the pages of a parquet file, or of some of its columns, and the number of their values.

    Its footer says where the pages of each column are. Sizes are those in the headers of the pages, which a reader
    has to rely on; the sums in the footer can say anything. Equal values take no space in a page, but each takes some
    in memory. See https://github.com/apache/parquet-format.

    Raises:
        ValueError: If it is not a parquet file.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - 8))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or size < _SMALLEST + length:
        raise ValueError("it is not a parquet file")
    stream.seek(size - 8 - length)
    total = values = 0
    try:
        for group in _value(io.BytesIO(stream.read(length)), 12).get(4, []):
            for chunk in group.get(1, []):
                column, counted = chunk[3], 0
                if columns is not None and column[3][0].decode() not in columns:
                    continue
                position = min(column[9], column.get(11, column[9]) or column[9])
                end = position + column[7]
                while position < end:
                    stream.seek(position)
                    page = _value(stream, 12)
                    if page[2] < 0 or page[3] < 0:
                        raise ValueError("a page has a negative size")
                    position = stream.tell() + page[3]
                    total += page[2]
                    # Pages of values have version 1 (5) or 2 (8); those of dictionaries have none of their own.
                    counted += sum(page[kind][1] for kind in (5, 8) if kind in page)
                values += max(group[3], counted)
    except (LookupError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError("its footer is damaged") from error
    return total, values


def _value(stream: io.BufferedIOBase, kind: int) -> Any:
    """Return a value in Thrift's compact protocol; a struct (12) as its fields by number."""
    if kind in (1, 2, 3):
        return stream.read(1)[0]
    if kind in (4, 5, 6):
        number = _unsigned(stream)
        return (number >> 1) ^ -(number & 1)
    if kind in (7, 8):
        return stream.read(8 if kind == 7 else _unsigned(stream))
    if kind in (9, 10):
        head = stream.read(1)[0]
        count = _unsigned(stream) if head >> 4 == 15 else head >> 4
        return [_value(stream, head & 15) for _ in range(count)]
    if kind != 12:
        raise ValueError("its footer is damaged")
    fields: dict[int, Any] = {}
    number = 0
    while head := stream.read(1)[0]:
        number = number + (head >> 4) if head >> 4 else _value(stream, 4)
        kind = head & 15
        # A truth stands in its kind.
        fields[number] = kind == 1 if kind in (1, 2) else _value(stream, kind)
    return fields


def _unsigned(stream: io.BufferedIOBase) -> int:
    number = 0
    for shift in range(0, 64, 7):
        byte = stream.read(1)[0]
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("its footer is damaged")
