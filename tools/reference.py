"""Writes the reference pages of the documentation from the code: every command, every public name.

Usage: python tools/reference.py

The pages stand in docs/reference/ and are not kept: `make docs` makes them before the site is built.
"""

import importlib
import inspect
from functools import cached_property
from pathlib import Path
from types import ModuleType

import identilens
from identilens.cli.app import make_app
from identilens.studies.registry import STUDIES, study_named

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
LIBRARIES = {
    "measures.attention": "Attention",
    "measures.explanations": "Explanations",
    "measures.mixing": "Mixing",
    "measures.tokens": "Tokens",
    "measures.structure": "Structure",
    "lab.encoder": "Identifiable encoders",
    "lab.dyck": "Dyck languages",
}
"""Packages whose names are public beside those of ``identilens`` itself."""


def directive(place: str, level: int = 2) -> str:
    """Return what mkdocstrings replaces with the documentation of a name; made objects must be looked at.

    Fields of a class are described in its docstring. As members they would show the docstrings of their defaults.
    """
    module, _, name = place.rpartition(".")
    thing = getattr(importlib.import_module(module), name)
    members = ""
    if inspect.isclass(thing):
        shown = [
            name
            for name, value in vars(thing).items()
            if not name.startswith("_") and is_documented(value)
        ]
        members = "      members:" + "".join(f'\n        - "{name}"' for name in shown) + "\n"
        members = members if shown else "      members: false\n"
    return f"::: {place}\n    options:\n      heading_level: {level}\n{members}"


def is_documented(value: object) -> bool:
    """Return whether a member of a class is code with a docstring of its own."""
    return isinstance(
        value, (property, cached_property, classmethod, staticmethod)
    ) or inspect.isfunction(value)


def public_names(module: ModuleType) -> list[str]:
    """Return the names that a package offers, in their order there."""
    named = getattr(module, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    return [
        name
        for name in named
        if hasattr(getattr(module, name), "__module__") and ours(getattr(module, name))
    ]


def ours(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).startswith("identilens")


def documented(module: ModuleType, name: str) -> str:
    """Return the place of a name where it is defined.

    Raises:
        ValueError: For a name without a docstring.
    """
    thing = getattr(module, name)
    if not inspect.getdoc(thing):
        raise ValueError(f"{module.__name__}.{name} has no docstring")
    return (
        f"{thing.__module__}.{thing.__name__}"
        if hasattr(thing, "__name__")
        else f"{module.__name__}.{name}"
    )


def studies_page() -> str:
    """Return the page of the studies: each function with its settings and its result."""
    parts = [
        "# Studies",
        "Each takes its inputs, its settings by name, and the options of a run; each returns a result.",
    ]
    for name, entry in STUDIES.items():
        study = study_named(name)
        public = (
            (name, getattr(place, name))
            for place in (identilens, identilens.lab)
            for name in place.__all__
        )
        functions = ((name, thing) for name, thing in public if inspect.isfunction(thing))
        function = next(name for name, thing in functions if thing.__module__ == study.__module__)
        parts += [
            f"## {function}", entry.help, f"On the command line: `identilens {name}`.",
            directive(f"{study.__module__}.{function}", 3), directive(place_of(study.settings_type), 3),
            directive(place_of(study.result_type), 3),
        ]  # fmt: skip
    return "\n\n".join(parts)


def place_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(exist_ok=True)
    pages = {
        "commands": "# Commands\n\n" + make_app().generate_docs(heading_level=2),
        "studies": studies_page(),
    }
    shown = pages["studies"]
    names = [
        documented(place, name)
        for place in (identilens, identilens.lab)
        for name in public_names(place)
    ]
    rest = [place for place in names if f"::: {place}\n" not in shown]
    pages["python"] = "\n\n".join(["# Models, inputs, results", *map(directive, rest)])
    for place, title in LIBRARIES.items():
        module = importlib.import_module(f"identilens.{place}")
        head = [
            f"# {title}",
            f"`identilens.{place}`: {(module.__doc__ or '').strip().splitlines()[0]}",
        ]
        pages[place.rpartition(".")[2]] = "\n\n".join(
            [*head, *(directive(documented(module, name)) for name in public_names(module))]
        )
    for name, text in pages.items():
        (FOLDER / f"{name}.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
