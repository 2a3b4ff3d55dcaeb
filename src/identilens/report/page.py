"""The shell of every HTML report: one file that asks nothing of the network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from identilens.report.run_facts import citation, run_facts
from identilens.results.files import write_atomically


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Attributes:
        anchor: Its id in the page.
        title: Its heading.
        template: Template that fills it, by path under ``templates``.
        context: What the template shows.
    """

    anchor: str
    title: str
    template: str
    context: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """What a report holds.

    Attributes:
        title: Heading and title of the page.
        subject: What was analysed, in a line.
        finding: The finding in plain words; a line each.
        numbers: The headline numbers: value, label.
        record: Provenance of the result.
        sections: The parts, in order.
        data: What the scripts read as ``Page.data``: JSON types only, NaN not among them.
        blobs: Base64 text that scripts read one by one, by element id.
        scripts: Scripts of this report, by path under ``templates``, run in order after the shell's own.
    """

    title: str
    subject: str
    finding: Sequence[str]
    numbers: Sequence[tuple[str, str]]
    record: Mapping[str, Any]
    sections: Sequence[Section]
    data: Mapping[str, Any]
    blobs: Mapping[str, str] = field(default_factory=dict)
    scripts: Sequence[str] = ()


def render_page(page: Page) -> str:
    """Return a report as one HTML document with every script and style inside.

    Text from models and users is escaped by the templates; data goes through JSON in which ``<``, ``>``,
    ``&`` and all characters beyond ASCII are escape sequences, so nothing in it can end a script element.
    """
    environment = Environment(
        loader=PackageLoader("identilens.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "sort_keys": False, "separators": (",", ":")}

    def own_file(name: str) -> Markup:
        loader = environment.loader
        if loader is None:  # pragma: no cover - set above; the attribute's type allows None
            raise RuntimeError("the template loader is gone")
        return Markup(loader.get_source(environment, name)[0])

    return environment.get_template("page.html").render(
        page=page,
        facts=run_facts(page.record),
        citation=citation(page.record),
        version=version("identilens"),
        plotly=Markup(get_plotlyjs()),
        own_file=own_file,
    )


def write_page(page: Page, path: str | Path) -> Path:
    """Write a report as one file, whole or not at all, and return its path.

    Raises:
        OutputFolderError: If the file cannot be written.
    """
    target = Path(path)
    # Lone surrogates (from file names on the command line, or broken tokens) have no UTF-8 form.
    content = render_page(page).encode("utf-8", "replace")
    write_atomically(target, lambda temporary: temporary.write_bytes(content))
    return target
