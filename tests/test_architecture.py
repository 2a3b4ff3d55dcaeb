"""The plan of the house, read from the imports, the registry and the settings."""

import ast
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from runpy import run_path
from typing import get_args, get_origin

import pytest

import identilens
from identilens.cli.app import COMMANDS, SUBCOMMANDS
from identilens.reproduce.registry import REPRODUCTIONS, figure_named
from identilens.runs.result import Result
from identilens.runs.settings import Settings, hints_of
from identilens.studies.registry import STUDIES, study_named

SOURCE = Path(__file__).parents[1] / "src" / "identilens"

BELOW = {
    "errors": set(),
    "linalg": {"errors"},
    "measures": {"errors", "linalg"},
    "models": {"errors", "linalg", "measures"},
    "claims": {"errors", "linalg", "measures", "models"},
    "charts": {"errors", "runs.files", "runs.terminal"},
    "runs": {"errors", "charts"},
    "studies": {"errors", "linalg", "measures", "models", "claims", "runs", "charts"},
    "lab": {"errors", "linalg", "measures", "models", "runs", "charts", "studies"},
    "demo": set(),
    "reproduce": {"errors", "linalg", "measures", "models", "runs", "charts", "studies", "lab"},
    "explorer": {"errors", "measures", "models", "charts", "runs.settings", "studies"},
    "cli": {"errors", "models", "claims", "runs", "studies", "reproduce", "demo", "explorer"},
    "__main__": {"cli"},
}
"""What each package may import, beside itself."""


@cache
def modules():
    """Every module of the package, by name."""
    return {
        ".".join(("identilens", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        ): file
        for file in sorted(SOURCE.rglob("*.py"))
    }


@cache
def imports(name):
    """The modules of the package that one imports, and whether it does so at its top level."""
    tree = ast.parse(modules()[name].read_text(encoding="utf-8"))
    top = set(map(id, tree.body))
    found: dict[str, bool] = {}
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            members = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [member if member in modules() else node.module for member in members]
        for one in names:
            if one in modules() and one != name:
                found[one] = found.get(one, True) and id(node) in top
    return found


def package(name):
    return name.split(".")[1] if "." in name else ""


def forbidden(name, targets):
    """Imports that point upwards."""
    own = package(name)
    return [
        f"{name} imports {target}"
        for target in targets
        if own and package(target) != own and package(target) not in BELOW[own]
        and ".".join(target.split(".")[1:3]) not in BELOW[own]
    ]  # fmt: skip


def test_data_flows_one_way():
    assert [arrow for name in modules() for arrow in forbidden(name, list(imports(name)))] == []
    assert forbidden("identilens.measures.x", ["identilens.models.lens"])
    assert forbidden("identilens.charts.page", ["identilens.runs.result"])
    assert not forbidden("identilens.charts.page", ["identilens.runs.files"])


def test_the_core_knows_no_laboratory_and_no_reproductions():
    wings = {"lab", "reproduce"}
    shell = {"identilens", "identilens.cli.app", "identilens.cli.reproductions"}
    for name in modules():
        if package(name) not in wings and name not in shell:
            assert not [target for target in imports(name) if package(target) in wings], name
        if package(name) == "lab":
            assert not [target for target in imports(name) if package(target) == "reproduce"], name


def test_no_import_of_our_own_below_the_top_level():
    assert [
        f"{name}: {target}"
        for name in modules()
        for target, top in imports(name).items()
        if not top
    ] == []


def test_no_import_circle():
    def reachable(start):
        seen: set[str] = set()
        todo = list(imports(start))
        while todo:
            one = todo.pop()
            if one not in seen:
                seen.add(one)
                todo += imports(one)
        return seen

    assert [name for name in modules() if name in reachable(name)] == []
    assert "identilens.errors" in reachable("identilens.runs.study")


def test_a_study_knows_no_other_study_and_its_views_no_result():
    """Libraries that several studies share stand below them; what belongs to one stands in its folder."""
    shared = {
        "registry", "reports", "settings", "drawn", "heads", "head_views", "items", "outcomes",
    }  # fmt: skip
    allowed = {("audit", "certify"), ("patterns", "certify"), ("answer", "certify")}
    for name in modules():
        parts = name.split(".")
        if parts[1:2] != ["studies"] or len(parts) < 4:
            continue
        others = {
            target.split(".")[2]
            for target in imports(name)
            if target.startswith("identilens.studies.")
        }
        others -= shared | {parts[2]}
        assert all((parts[2], other) in allowed for other in others), (name, others)
        if parts[3] == "views":
            assert not [
                target for target in imports(name) if target.endswith((".result", ".study"))
            ], name
        if parts[3] == "result":
            assert not [target for target in imports(name) if target.endswith(".study")], name


def test_only_models_and_laboratories_import_transformers_internals():
    for name, file in modules().items():
        if package(name) in ("models", "lab"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                internals = ("transformers.models", "transformers.masking", "transformers.modeling")
                assert not node.module.startswith(internals), name


LAZY = ("identilens", "identilens.lab", "identilens.lab.dyck", "identilens.lab.encoder")
"""Packages whose names are loaded when they are first used."""


def test_init_files_hold_nothing_but_names():
    for name, file in modules().items():
        if file.name != "__init__.py" or name in LAZY:
            continue
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert docstring or isinstance(node, ast.ImportFrom), f"{name} does more than re-export"


HEAVY = ("torch", "transformers", "polars", "altair")
COUNTED = """
import sys
try:
    exec({code!r})
except SystemExit as end:
    assert not end.code
print(*[name for name in {heavy} if name in sys.modules])
"""


EACH = """
from identilens.cli.app import make_app
from identilens.errors import InputError
from cyclopts import CycloptsError
for line in sys.argv[1:]:
    try:
        make_app()(line, exit_on_error=False, print_error=False, result_action='return_none')
        assert line.endswith('--help'), line
    except (CycloptsError, InputError):
        assert not line.endswith('--help'), line
"""
"""Runs command lines that ask for help, or have a mistake in their arguments."""

MISTAKES = (
    "audit --model bundled",
    "audit --model bundled --text a --file b",
    "audit --model bundled --text a --layers x",
    "audit --model bundled --text a --resume",
    "certify --model bundled --text a --tolerance x",
    "answer --model bundled",
    "lab dyck train --seeds x",
    "lab reversal --resume",
    "lab encoder train",
    "reproduce wen2023-table1 --seeds x",
    "reproduce nothing",
    "explore --port 99999",
    "export nowhere",
    "compare nowhere elsewhere",
    "verify nowhere",
    "check nowhere",
    "selfcheck",
    "nothing",
)


def heavy_imports(code, *arguments):
    """What code imports in a process of its own, which is given arguments as on the command line."""
    command = [sys.executable, "-c", COUNTED.format(code=code, heavy=HEAVY), *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    return done.stdout.splitlines()[-1].split()


def test_starting_imports_nothing_heavy():
    start = "from identilens.cli.app import main; main()"
    assert heavy_imports("import identilens") == []
    assert heavy_imports(start, "--version") == []
    assert heavy_imports(start, "--help") == []
    commands = [*STUDIES, *COMMANDS, *SUBCOMMANDS, *(f"reproduce {name}" for name in REPRODUCTIONS)]
    assert heavy_imports(EACH, *(f"{name} --help" for name in commands)) == []
    assert heavy_imports(EACH, *MISTAKES, *(f"{name} --nothing 1" for name in commands)) == []
    assert heavy_imports("import polars; sys.exit()") == ["polars"], (
        "else the test would see nothing"
    )


def test_every_study_is_registered_and_those_of_the_core_have_the_same_files():
    registered = {entry.study.partition(":")[0] for entry in STUDIES.values()}
    studies = {
        name
        for name, file in modules().items()
        if " = study_function(" in file.read_text(encoding="utf-8")
    }
    assert studies == registered
    for name in studies:
        if package(name) == "studies":
            held = {file.name for file in modules()[name].parent.glob("*.py")}
            assert {"__init__.py", "study.py", "result.py"} <= held, name


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_has_settings_a_result_and_its_registered_name(name):
    study = study_named(name)
    assert study.name == name == study.result_type.analysis
    entry = STUDIES[name]
    assert resolve_name(entry.settings) is study.settings_type
    assert issubclass(study.settings_type, Settings)
    assert is_dataclass(study.settings_type)
    assert issubclass(study.result_type, Result)
    held = {field.name for field in fields(study.result_type)}
    assert set(study.result_type.schema) <= held
    assert "table" in study.result_type.schema
    assert study.__doc__


def test_one_option_has_one_type_in_every_study():
    """What is named alike takes the same values: ``layers``, ``heads`` and so on."""

    def bare(hint):
        return (get_origin(hint), tuple(map(bare, get_args(hint)))) if get_args(hint) else hint

    # In the laboratory, heads and layers are sizes of the models that are made.
    seen: dict[str, tuple[str, object]] = {}
    for name in STUDIES:
        if name.startswith("lab "):
            continue
        for setting, hint in hints_of(study_named(name).settings_type).items():
            kind = (
                get_args(hint)[0] if get_origin(hint) is not None and setting in ("seed",) else hint
            )
            where, before = seen.setdefault(setting, (name, bare(kind)))
            assert before == bare(kind), f"{setting} in {where} and {name}"
    assert {"layers", "heads", "max_length"} <= set(seen)


def packages_of(folder):
    return {file.parent.name for file in folder.glob("*/__init__.py")}


def test_no_public_name_is_a_package():
    packages = packages_of(SOURCE)
    assert packages & set(identilens.__all__) == {"lab"}
    assert not packages_of(SOURCE / "lab") & set(identilens.lab.__all__)
    for file in SOURCE.rglob("__init__.py"):
        beside = {one.stem for one in file.parent.glob("*.py")} | {
            one.name for one in file.parent.iterdir() if one.is_dir()
        }
        tree = ast.parse(file.read_text(encoding="utf-8"))
        exported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        defined = {name for name in exported if name in beside and name[0].islower()}
        assert not {name for name in defined if (file.parent / name).is_dir()}, file


def test_every_reproduction_can_be_imported():
    for name in REPRODUCTIONS:
        assert callable(figure_named(name)), name


BUDGETS = run_path(str(Path(__file__).parents[1] / "tools" / "budgets.py"))


def test_the_package_stays_within_its_budgets(capsys):
    figures = BUDGETS["figures"]()
    with capsys.disabled():
        print("", *(f"{name}: {figure:,}" for name, figure in figures.items()), sep="\n  ")
    assert [name for name, limit in BUDGETS["LIMITS"].items() if figures[name] > limit] == []


@pytest.mark.parametrize("name", modules())
def test_nothing_of_the_machine_is_in_the_code(name):
    text = modules()[name].read_text(encoding="utf-8")
    assert "from __future__ import annotations" not in text
    assert "/work/" not in text
