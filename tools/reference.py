"""Writes what is made from the code: the reference pages of the documentation, and the types of the studies' functions.

Usage: python tools/reference.py

The pages stand in docs/reference/ and are not kept: `make docs` makes them before the site is built. Each page has one
topic. A public name that no page shows is an error. The types stand in the package's stub, for editors.
"""

import importlib
import inspect
import re
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from textwrap import indent
from types import ModuleType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import identilens
from identilens.cli.app import COMMANDS, make_app
from identilens.cli.options import (
    ChatOptions,
    ModelOptions,
    PrintOptions,
    RayOptions,
    RunOptions,
    TextOptions,
)
from identilens.reproduce.options import OPTIONS
from identilens.reproduce.registry import REPRODUCTIONS
from identilens.runs.settings import hints_of
from identilens.studies.registry import STUDIES, study_named
from identilens.studies.tokens.settings import TokenSettings
from tables import DOCS, families_page, figures_page, resolved, sections, settings_table

FOLDER = DOCS / "reference"
SHARED = {
    "The model": ModelOptions,
    "The texts": TextOptions,
    "The conversations": ChatOptions,
    "The run": RunOptions,
    "The cluster": RayOptions,
    "What is printed": PrintOptions,
}
"""Options that all studies take on the command line, by heading."""

PAPERS = {
    "brunner2020": "Brunner et al. 2020",
    "brunner2020-tokens": "Brunner et al. 2020, tokens",
    "bhardwaj2021": "Bhardwaj et al. 2021",
    "wen2023": "Wen et al. 2023",
    "others": "other papers",
}
"""Pages of reproductions, by the beginning of their names."""


@dataclass(frozen=True)
class Topic:
    """A page of the reference.

    Attributes:
        title: Heading of the page.
        studies: Studies that it describes, by their names on the command line.
        places: Modules whose public names it describes: the module of the names, or of the file that defines them.
        names: Public names of ``identilens`` and ``identilens.lab`` on this page.
    """

    title: str
    studies: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


ATTENTION = "measures.attention"


def files(*names: str) -> tuple[str, ...]:
    """Return modules of the measures of attention."""
    return tuple(f"{ATTENTION}.{name}" for name in names)


TOPICS = {
    "models": Topic(
        "Models",
        names=(
            "load",
            "Lens",
            "bundled_model",
        ),
    ),
    "inputs": Topic(
        "Texts and images",
        names=("examples", "read_texts", "read_conllu", "read_image"),
    ),
    "runs": Topic(
        "Runs and results",
        names=(
            "load_result",
            "write_report",
            "compare",
            "verify",
        ),
    ),
    "audit": Topic("Audit", studies=("audit",)),
    "certify": Topic("Certify", studies=("certify",), places=("claims",)),
    "influence": Topic("Influence", studies=("influence",)),
    "alternatives": Topic("Alternatives", studies=("alternatives",)),
    "faithfulness": Topic(
        "Faithfulness", studies=("faithfulness",), places=("measures.explanations",)
    ),
    "answer": Topic("Answers", studies=("answer",)),
    "mixing": Topic("Mixing", studies=("mixing",), places=("measures.mixing",)),
    "rollout": Topic("Rollout", studies=("rollout",)),
    "patterns": Topic("Patterns", studies=("patterns",)),
    "tokens": Topic("Tokens", studies=("tokens",), places=("measures.tokens",)),
    "inversion": Topic(
        "Inversion", names=("invert", "studies.inversion.result.Inverted"), studies=("inversion",)
    ),
    "structure": Topic("Structure", studies=("structure",), places=("measures.structure",)),
    "determined": Topic(
        "Measures: determined and influential",
        places=(
            "linalg.projected",
            *files("detectors", "determined", "effective", "influence", "intervals", "rank"),
        ),
    ),
    "search": Topic(
        "Measures: alternatives",
        places=files("samplers", "simplex", "logits"),
    ),
    "realisable": Topic(
        "Measures: realisable alternatives",
        places=files("realisable"),
    ),
    "encoder": Topic(
        "Identifiable encoders",
        studies=("lab encoder train", "lab encoder sweep"),
    ),
    "encoder-models": Topic("Models of identifiable encoders", places=("lab.encoder",)),
    "dyck": Topic(
        "Dyck laboratory",
        studies=("lab dyck train",),
    ),
    "dyck-models": Topic("Dyck languages and models", places=("lab.dyck",)),
    "reversal": Topic("Reversal", studies=("lab reversal",)),
}
LIBRARIES = (
    ATTENTION, "measures.explanations", "measures.mixing", "measures.tokens", "measures.structure", "lab.encoder",
    "lab.dyck", "claims",
)  # fmt: skip
"""Packages whose names are public beside those of ``identilens`` itself."""


def directive(place: str, level: int = 2, **options: bool) -> str:
    """Return what mkdocstrings replaces with the documentation of a name; made objects must be looked at.

    Fields of a class are described in its docstring. As members they would show the docstrings of their defaults.
    """
    thing = resolve_name(place)
    chosen = [f"heading_level: {level}"] + [f"{name}: {on}".lower() for name, on in options.items()]
    if inspect.isclass(thing):
        shown = [
            name
            for name, value in vars(thing).items()
            if not name.startswith("_") and is_documented(value)
        ]
        chosen.append("members:" + "".join(f'\n        - "{name}"' for name in shown))
        if not shown:
            chosen[-1] += " false"
    return f"::: {place}\n    options:\n" + "".join(f"      {one}\n" for one in chosen)


def is_documented(value: object) -> bool:
    """Return whether a member of a class is code with a docstring of its own."""
    return isinstance(
        value, (property, cached_property, classmethod, staticmethod)
    ) or inspect.isfunction(value)


def public_places(module: ModuleType) -> Iterator[str]:
    """Yield where each name that a package offers is defined, in the order of the package.

    Raises:
        ValueError: For a name without a docstring.
    """
    named = getattr(module, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]
    for name in named:
        thing = getattr(module, name)
        if not str(getattr(thing, "__module__", "")).startswith("identilens"):
            continue
        if not inspect.getdoc(thing):
            raise ValueError(f"{module.__name__}.{name} has no docstring")
        yield place_of(thing) if hasattr(thing, "__name__") else f"{module.__name__}.{name}"


def place_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__name__}"


def every_public_place() -> list[str]:
    """Return the place of every public name, each once."""
    modules = [
        identilens,
        identilens.lab,
        *(importlib.import_module(f"identilens.{name}") for name in LIBRARIES),
    ]
    return list(dict.fromkeys(place for module in modules for place in public_places(module)))


def function_of(name: str) -> tuple[str, str]:
    """Return how a study is called in Python, and where its function is defined."""
    study = study_named(name)
    for prefix, package in (("idl", identilens), ("idl.lab", identilens.lab)):
        for one in package.__all__:
            thing = getattr(package, one)
            if inspect.isfunction(thing) and thing.__module__ == study.__module__:
                return f"{prefix}.{one}", place_of(thing)
    raise ValueError(f"no public function runs the study {name}")


def study_section(name: str) -> list[str]:
    """Return the parts of a page that describe a study: its call, its settings, its result."""
    study = study_named(name)
    call, place = function_of(name)
    inputs = sections(
        inspect.cleandoc(study.__doc__ or "").partition("Args:\n")[2].partition("\n\n")[0]
    )
    needed = "".join(f", {one}" for one in inputs)[2:]
    title = call.removeprefix("idl.")
    return [
        f"## {title}",
        STUDIES[name].help,
        f"Call it as `{call}({needed}, …)` in Python, or as `identilens {name}` on the command line, where a setting "
        "such as `two_words` is written `--two-words`. The "
        "[options of every study](commands.md#options-of-every-study) and, in Python, the "
        "[arguments of every study](commands.md#in-python) can be added.",
        "".join(f"- `{one}`: {words}\n" for one, words in inputs.items()),
        directive(
            place,
            3,
            show_docstring_parameters=False,
            show_root_heading=False,
            show_root_toc_entry=False,
            show_signature=False,
        ),
        f"### Settings of {title}",
        settings_table(study.settings_type),
        directive(place_of(study.result_type), 3),
    ]


def topic_page(topic: Topic) -> str:
    """Return a page of a topic."""
    parts = [f"# {topic.title}"]
    for name in topic.studies:
        parts += study_section(name)
    shown = set(re.findall(r"^::: (\S+)", "\n".join(parts), re.MULTILINE))
    for name in topic.names:
        thing = getattr(identilens, name.partition(".")[0], None) or getattr(identilens.lab, name)
        parts.append(directive(f"identilens.{name}" if "." in name else place_of(thing)))
    for place in every_public_place():
        module = place.rpartition(".")[0].removeprefix("identilens.")
        here = any(module == one or module.startswith(f"{one}.") for one in topic.places)
        if here and place not in shown and not is_of_a_study(place):
            parts.append(directive(place))
    return "\n\n".join(part for part in parts if part)


def is_of_a_study(place: str) -> bool:
    """Return whether a name is the function, the settings or the result of a study."""
    studies = [study_named(name) for name in STUDIES]
    own = {place_of(kind) for one in studies for kind in (one.settings_type, one.result_type)}
    return place in own | {function_of(name)[1] for name in STUDIES}


def commands_page() -> str:
    """Return the page of the commands: a list, the options that studies share, the commands without a study."""
    pages = {name: page for page, topic in TOPICS.items() for name in topic.studies}
    titles = {name: function_of(name)[0].removeprefix("idl.") for name in STUDIES}
    listed = [
        f"| [`identilens {name}`]({pages[name]}.md#{anchor(titles[name])}) | {entry.help} |"
        for name, entry in STUDIES.items()
    ]
    listed += [
        f"| [`identilens {name}`](#{name}) | {line} |" for name, (_, _, line) in COMMANDS.items()
    ]
    listed.append(
        "| `identilens reproduce` | A published table or figure, beside the published numbers: of "
        + ", ".join(f"[{title}](reproduce-{paper}.md)" for paper, title in PAPERS.items())
        + ". |"
    )
    parts = ["# Commands", "| command | |\n|---|---|\n" + "\n".join(listed)]
    parts += [
        "## Options of every study",
        "Studies on texts take all of these; the laboratories, which make their models and texts themselves, take the "
        "run, the cluster and what is printed. `--config FILE` reads options from a file ([how](../settings.md)).",
    ]
    for heading, kind in SHARED.items():
        parts += [f"### {heading}", settings_table(kind)]
    study = identilens.certify.__doc__ or ""
    shared = sections(study.partition("Args:\n")[2])
    python = (
        "settings",
        "out",
        "resume",
        "overwrite",
        "ray",
        "progress",
    )
    parts += ["### In Python", "".join(f"- `{name}`: {shared[name]}\n" for name in python)]
    app = make_app()
    for name in COMMANDS:
        written = app[name].generate_docs(heading_level=2)
        # Cyclopts heads the section by the last word of the command.
        parts.append(re.sub(r"^## .*", f"## {name}", written, count=1))
    return "\n\n".join(parts)


def anchor(title: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w-]", "", title.lower())


def reproductions_page(paper: str) -> str:
    """Return the page of a paper's reproductions, each with its settings."""
    parts = [
        f"# Reproductions: {PAPERS[paper]}",
        "Each is `identilens reproduce NAME`, with the [options of a run](commands.md#the-run) and the settings below. "
        "[Every figure, published and measured](../reproductions.md), has what came out.",
    ]
    for name, line in REPRODUCTIONS.items():
        if page_of(name) == paper:
            parts += [f"## {name}", line, settings_table(OPTIONS[name])]
    return "\n\n".join(parts)


def page_of(reproduction: str) -> str:
    """Return the page of a reproduction; those of Brunner et al. would be too long for one."""
    paper = reproduction.partition("-")[0]
    if paper == "brunner2020" and issubclass(OPTIONS[reproduction], TokenSettings):
        return "brunner2020-tokens"
    return paper if paper in PAPERS else "others"


_ACCEPTED = {
    "int": "int | str | collections.abc.Sequence[int]",
    "float": "float | str | collections.abc.Sequence[float]",
    "str": "str | collections.abc.Sequence[str]",
}
"""What a setting of several values takes, by the type of a value."""


def accepted(hint: Any) -> str:
    """Return what a setting takes in Python, as it is written in a stub."""
    kind, _, optional = resolved(hint)
    if get_origin(kind) is tuple:
        inner = accepted(get_args(kind)[0])
        words = _ACCEPTED.get(inner, f"{inner} | str | collections.abc.Sequence[{inner}]")
    elif get_origin(kind) is Literal:
        words = f"typing.Literal[{', '.join(map(repr, get_args(kind)))}]"
    elif get_origin(kind) in (Union, UnionType):
        words = " | ".join(dict.fromkeys(map(accepted, get_args(kind))))
    else:
        place = kind.__module__.removeprefix("identilens.").replace("builtins", "")
        named = f"{place}.{kind.__name__}".strip(".")
        words = {Path: "str | pathlib.Path", Any: "typing.Any"}.get(kind, named)
    words = " | ".join(dict.fromkeys(words.split(" | ")))
    return f"{words} | None" if optional else words


def stub_of(name: str) -> str:
    """Return the function of a study as a stub has it: its inputs, its settings with their types, its docstring."""
    registered = STUDY_OF.get(name, name)
    function, study = getattr(identilens, name), study_named(registered)
    inputs = [
        f"{one.name}: {'Lens' if one.name == 'lens' else 'typing.Any'}"
        for one in list(inspect.signature(function).parameters.values())[
            : len(STUDIES[registered].takes)
        ]
    ]
    settings = []
    for field in fields(study.settings_type):
        default = "" if field.default is MISSING else " = ..."
        settings.append(
            f"{field.name}: {accepted(hints_of(study.settings_type)[field.name])}{default}"
        )
    lines = [*inputs, "*", *settings, *RUN_OPTIONS]
    body = "".join(f"    {line},\n" for line in lines)
    words = inspect.getdoc(function) or ""
    words = indent(words.partition("\nExamples:")[0].strip(), "    ")
    return f'def {name}(\n{body}) -> {place_of(study.result_type)}:\n    r"""{words.strip()}\n    """\n'


STUDY_OF = {"token_identifiability": "tokens"}
RUN_OPTIONS = (
    "settings: typing.Any = ...",
    "out: str | pathlib.Path | None = ...",
    "resume: bool = ...",
    "overwrite: bool = ...",
    "ray: bool | str = ...",
    "progress: collections.abc.Callable[[int, int, str], None] | bool | None = ...",
)
STUB = Path(identilens.__file__).with_suffix(".pyi")
MADE = "# What follows is made by tools/reference.py.\n# fmt: off\n"


def stub() -> str:
    """Return the stub of the package: its names, and the functions of the studies with their types."""
    names: list[str] = [
        name for name in vars(identilens)["__all__"] if name in STUDIES or name in STUDY_OF
    ]
    opening = STUB.read_text(encoding="utf-8").partition(MADE)[0]
    results = {study_named(STUDY_OF.get(name, name)).result_type.__module__ for name in names}
    imports = "".join(f"import {place}\n" for place in sorted(results))
    return "\n".join([opening.rstrip() + "\n", MADE + imports, *map(stub_of, names)])


def main() -> None:
    """Write the pages.

    Raises:
        ValueError: For a public name that no page shows.
    """
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    pages = {name: topic_page(topic) for name, topic in TOPICS.items()}
    shown = set(re.findall(r"^::: (\S+)", "\n".join(pages.values()), re.MULTILINE))
    settings = {place_of(study_named(name).settings_type) for name in STUDIES}
    missing = [place for place in every_public_place() if place not in shown | settings]
    if missing:
        raise ValueError(
            f"no page of the reference shows {', '.join(missing)}; name them in TOPICS"
        )
    pages["commands"], pages["families"] = commands_page(), families_page()
    pages |= {f"reproduce-{paper}": reproductions_page(paper) for paper in PAPERS}
    (DOCS / "reproductions.md").write_text(figures_page(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")
    for name, text in pages.items():
        (FOLDER / f"{name}.md").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
