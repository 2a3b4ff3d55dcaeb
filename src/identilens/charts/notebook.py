"""Maps in a notebook: the viewer behind a click; nothing comes from the network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from identilens.charts.figures import document, framed, looks
from identilens.charts.viewer import TokenMap, fitting, viewer_data
from identilens.runs.files import write_text

NOTEBOOK_BUDGET = 4_000_000
"""Characters of a notebook that the maps of one result may take, before they are deflated."""

_HEIGHT = 1100


@dataclass(frozen=True)
class MapView:
    """Maps in the viewer, on their own: a notebook shows them, `to_html` writes them.

    Attributes:
        maps: What can be chosen; open is the one with the most ``interest``.
    """

    maps: Sequence[TokenMap]

    def html(self) -> str:
        """Return the viewer as one HTML document that asks nothing of the network."""
        shown = fitting(self.maps, NOTEBOOK_BUDGET)
        data = {"maps": viewer_data(shown), "looks": looks()}
        return document("maps.html", data=data)

    def to_html(self, path: str | Path) -> Path:
        """Write the viewer as one file and return its path.

        Raises:
            OutputFolderError: If the file cannot be written.
        """
        target = Path(path)
        write_text(target, self.html())
        return target

    def _repr_html_(self) -> str:
        return framed(self.html(), "Attention maps", _HEIGHT)


def folded_maps(maps: Sequence[TokenMap]) -> str:
    """Return the viewer, to unfold, as a part of a notebook's output."""
    if not maps:
        return ""
    shown = MapView(maps)._repr_html_()
    return f"<details><summary>Maps: open the viewer</summary>{shown}</details>"
