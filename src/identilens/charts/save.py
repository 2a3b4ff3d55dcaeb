"""Charts as files for papers, drawn without a browser."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import vl_convert

from identilens.charts.encoding import AnyChart
from identilens.charts.figures import VEGA_LITE
from identilens.charts.labels import file_names
from identilens.charts.palette import LIGHT, theme
from identilens.errors import InputError
from identilens.runs.files import write_bytes

FORMATS: dict[str, Callable[[str], bytes]] = {
    "png": lambda svg: vl_convert.svg_to_png(svg, scale=3),
    "svg": lambda svg: svg.encode(),
    "pdf": vl_convert.svg_to_pdf,
}
"""What makes a file of a chart drawn as SVG, by its format."""
_WIDTH = 420
"""Pixels across the plot of a chart that fills its page; a point a pixel in PDF."""


def save_charts(
    charts: Mapping[str, AnyChart], folder: str | Path, formats: Sequence[str]
) -> list[Path]:
    """Write every chart once for each format, replacing files of the same names, and return the paths.

    A chart with drop-downs is written once for each choice, which then stands below its title and at the end of the
    file's name.

    Raises:
        InputError: For a format that is not supported; nothing is written then.
        OutputFolderError: If the folder cannot be written.
    """
    if not formats or not {*formats} <= {*FORMATS}:
        raise InputError(
            f"formats must be a list with any of {', '.join(FORMATS)}; got {formats!r}. Pass e.g. formats=('png',)."
        )
    paths = []
    for name, chart in charts.items():
        full = chart.to_dict() | {"config": theme(LIGHT)}
        if full.get("width") == "container":
            full["width"] = _WIDTH
        for full_name, spec in _choices(name, full):
            svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE)
            for kind in formats:
                paths.append(Path(folder) / f"{full_name}.{kind}")
                write_bytes(paths[-1], FORMATS[kind](svg))
    return paths


def _choices(name: str, spec: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of files and the specifications of a chart, one for each choice that it offers."""
    params = spec.get("params", [])
    offered = [param for param in params if "bind" in param]
    fixed = [param for param in params if "bind" not in param]
    for choice in product(*map(_options, offered)):
        parts, said, drawn = zip(*choice, strict=True) if choice else ((), (), ())
        titled = {"title": {"text": spec.get("title", name), "subtitle": said}} if said else {}
        yield "_".join([name, *parts]), {**spec, **titled, "params": [*fixed, *drawn]}


def _options(param: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the options of a drop-down: its part of a file's name, its words, and the parameter with its value."""
    bind = param["bind"]
    files = file_names(map(str, bind["labels"]))
    for value, (label, part) in zip(bind["options"], files.items(), strict=True):
        yield part, bind["name"] + label, param | {"value": value}
