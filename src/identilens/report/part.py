"""A part of a report that can stand on a page of its own or be joined to another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from identilens.report.page import Section


@dataclass(frozen=True)
class Part:
    """Sections with the data and scripts that fill them.

    Attributes:
        sections: In order.
        data: What their scripts read, by names that no other part uses.
        blobs: Base64 text by element id.
        scripts: By path under ``templates``.
    """

    sections: Sequence[Section]
    data: Mapping[str, Any]
    blobs: Mapping[str, str] = field(default_factory=dict)
    scripts: Sequence[str] = ()


def joined(parts: Sequence[Part]) -> Part:
    """Return parts as one, each script once."""
    return Part(
        [section for part in parts for section in part.sections],
        {name: value for part in parts for name, value in part.data.items()},
        {name: value for part in parts for name, value in part.blobs.items()},
        list(dict.fromkeys(script for part in parts for script in part.scripts)),
    )
