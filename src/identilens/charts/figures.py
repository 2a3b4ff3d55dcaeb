"""Charts inside a page or a notebook's output: drawn by scripts that come with them, without the network."""

from dataclasses import asdict
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from identilens.charts.labels import cell
from identilens.charts.packing import deflated
from identilens.charts.palette import DARK, LIGHT, theme

VEGA_LITE = ".".join(alt.SCHEMA_VERSION.split(".")[:2])
"""Version of Vega-Lite that Altair writes for, as vl-convert names it."""

SCRIPTS = ("numbers", "space", "canvas", "gestures", "panels", "viewer")
"""Parts of the viewer, in the order in which they need each other."""

_HEIGHT = 420


class _Offline:
    """A chart that a notebook shows without the network, which Altair's own page needs for Vega."""

    def _repr_mimebundle_(self, *args: Any, **options: Any) -> Any:
        if alt.renderers.active != "default":
            return super()._repr_mimebundle_(*args, **options)  # pyright: ignore[reportAttributeAccessIssue] of a chart
        return {"text/html": framed(chart_page(self), "Chart", _HEIGHT)}


class Chart(_Offline, alt.Chart):
    """A chart of one layer."""


class LayerChart(_Offline, alt.LayerChart):
    """Charts on top of each other."""


class ConcatChart(_Offline, alt.ConcatChart):
    """Charts beside each other."""


def framed(html: str, title: str, height: int) -> str:
    """Return a document as a frame of a notebook's output, so many pixels high."""
    frame = f'<iframe srcdoc="{escape(html)}" title="{title}" loading="lazy"'
    return f'{frame} style="width: 100%; height: {height}px; border: 0"></iframe>'


def chart_page(chart: Any) -> str:
    """Return a chart as one HTML document that fits its height to what it shows."""
    data = {"charts": {}, "datasets": {}, "viewers": {}, "looks": looks()}
    shown = figure("chart", chart, "Chart", data)
    return document("chart.html", figure=shown, data=data, vega=packed_vega())


def looks() -> dict[str, Any]:
    """Return the colours of pages and charts in the light and in the dark look."""
    both = {"light": LIGHT, "dark": DARK}
    return {name: {**asdict(look), "config": theme(look)} for name, look in both.items()}


def figure(name: str, chart: Any, section: str, data: dict[str, Any]) -> dict[str, str]:
    """Put a chart into the data of a page, and return its id there, its title and its description."""
    spec = chart.to_dict()
    data["datasets"] |= spec.pop("datasets", {})
    # Titles of Vega do not break into lines; those of the page do.
    title = spec.pop("title", "")
    words = title if isinstance(title, str) else str(title.get("text", ""))
    for unused in ("config", "$schema"):
        spec.pop(unused, None)
    # Vega makes its description the label of the element that it draws in.
    spec["description"] = words or section
    data["charts"][name] = spec
    return {
        "id": name,
        "title": "" if words == section else words,
        "description": spec["description"],
    }


def document(template: str, **parts: Any) -> str:
    """Return a template filled with these parts, and with the looks and the scripts that every document has.

    Text is escaped, and data holds nothing that JSON does not know.
    """
    templates = Environment(
        loader=PackageLoader("identilens.charts", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "sort_keys": False,
        "separators": (",", ":"),
    }
    return templates.get_template(template).render(
        looks={"light": LIGHT.variables, "dark": DARK.variables},
        own_file=own_file,
        cell=cell,
        viewer=Markup(viewer_script()),
        **parts,
    )


@cache
def viewer_script() -> str:
    """Return the viewer as one script that defines ``tokenMaps``."""
    parts = [own_file(f"viewer/{name}.js") for name in SCRIPTS]
    return (
        '"use strict";\n(() => {\n'
        + "".join(parts)
        + "Object.assign(window, { tokenMaps, inflated, made });\n})();\n"
    )


def own_file(name: str) -> Markup:
    """Return a script or a style sheet of ours as it is."""
    return Markup((Path(__file__).parent / "templates" / name).read_text(encoding="utf-8"))


@cache
def packed_vega() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script, deflated and in base64; made once a process, in seconds."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE)
    return deflated(script.encode())
