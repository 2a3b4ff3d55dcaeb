"""The size to which a parquet file expands, read from its page headers before anything is decompressed."""

import io
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

_MAGIC = b"PAR1"
_SMALLEST = 12
"""Bytes of a parquet file that contains nothing."""


@dataclass(frozen=True)
class Expanded:
    """Size of a parquet file when it is decompressed.

    Attributes:
        bytes: Size of its pages.
        values: Number of its values; equal ones take no space in a page, but each takes some in memory.
    """

    bytes: int
    values: int


def expanded(stream: io.BufferedIOBase, columns: Collection[str] | None = None) -> Expanded:
    """Return the size of a parquet file, or of some of its columns, after decompression.

    Its footer says where the pages of each column are. Sizes are those in the headers of the pages, which a reader
    has to rely on; the sums in the footer can say anything. See https://github.com/apache/parquet-format.

    Raises:
        ValueError: If it is not a parquet file.
    """
    size = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, size - 8))
    tail = stream.read(8)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or size < _SMALLEST + length:
        raise ValueError("it is not a parquet file")
    stream.seek(size - 8 - length)
    try:
        footer = _struct(io.BytesIO(stream.read(length)))
        total = values = 0
        for group in footer.get(4, []):
            for chunk in group.get(1, []):
                column = chunk[3]
                if columns is None or column[3][0].decode() in columns:
                    pages = [*_pages(stream, column)]
                    total += sum(page[2] for page in pages)
                    values += max(group[3], sum(map(_values, pages)))
    except (KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("its footer is damaged") from error
    return Expanded(total, values)


def _pages(stream: io.BufferedIOBase, column: dict[int, Any]) -> Iterator[dict[int, Any]]:
    """Yield the header of each page of a column."""
    position = min(column[9], column.get(11, column[9]) or column[9])
    end = position + column[7]
    while position < end:
        stream.seek(position)
        header = _struct(stream)
        if header[2] < 0 or header[3] < 0:
            raise ValueError("a page has a negative size")
        yield header
        position = stream.tell() + header[3]


def _values(page: dict[int, Any]) -> int:
    # A dictionary page (7) has none of its own: they are among those of the data pages, of version 1 (5) and 2 (8).
    return sum(page[kind][1] for kind in (5, 8) if kind in page)


def _struct(stream: io.BufferedIOBase) -> dict[int, Any]:
    """Return the fields of a struct in Thrift's compact protocol, by their numbers."""
    fields: dict[int, Any] = {}
    number = 0
    while head := _byte(stream):
        number = number + (head >> 4) if head >> 4 else _integer(stream)
        kind = head & 15
        fields[number] = kind == 1 if kind in (1, 2) else _value(stream, kind)
    return fields


def _value(stream: io.BufferedIOBase, kind: int) -> Any:
    if kind in (1, 2, 3):
        return _byte(stream)
    if kind in (4, 5, 6):
        return _integer(stream)
    if kind == 7:
        return _exactly(stream, 8)
    if kind == 8:
        return _exactly(stream, _unsigned(stream))
    if kind in (9, 10):
        head = _byte(stream)
        count = _unsigned(stream) if head >> 4 == 15 else head >> 4
        return [_value(stream, head & 15) for _ in range(count)]
    if kind == 12:
        return _struct(stream)
    raise ValueError("its footer is damaged")


def _integer(stream: io.BufferedIOBase) -> int:
    number = _unsigned(stream)
    return (number >> 1) ^ -(number & 1)


def _unsigned(stream: io.BufferedIOBase) -> int:
    number = 0
    for shift in range(0, 64, 7):
        byte = _byte(stream)
        number |= (byte & 127) << shift
        if byte < 128:
            return number
    raise ValueError("its footer is damaged")


def _byte(stream: io.BufferedIOBase) -> int:
    return _exactly(stream, 1)[0]


def _exactly(stream: io.BufferedIOBase, count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise ValueError("its footer is cut short")
    return content
