"""Small changes of the package, drawn by a seed: does a fast test of the changed file's folder notice each?

    python tools/mutants.py --seed 7 --count 60 [--only 3 17]

Functions are drawn uniformly, then a change in each. It is tested in a temporary copy of the repository, by the tests
of the file's name and those of its folder. Survivors are to be judged: equivalent, or a hole in the tests.
"""

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "identilens"
PACKAGES = ("linalg", "measures", "models", "runs", "studies", "explorer", "cli", "charts")
_PAIRS = [(ast.Lt, ast.GtE), (ast.Gt, ast.LtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn)]
_PAIRS += [(ast.Is, ast.IsNot), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)]
_PAIRS += [("min", "max"), ("amin", "amax"), ("argmin", "argmax")]
OPPOSITE: dict[Any, Any] = dict([*_PAIRS, *((b, a) for a, b in _PAIRS)])
OPPOSITE |= {"clamp_min": "clamp_max", "any": "all"}
"""The operator, or the name of a function, that takes the place of another."""

LIMIT = "400"
"""Seconds for the tests of a change."""


@dataclass(frozen=True)
class Mutant:
    """A change of one function: its file and place, what is changed, and the file's text with the change."""

    file: Path
    place: str
    change: str
    text: str


def mutants(file: Path, number: int) -> list[Mutant]:
    """Return every change of a function, given by its number in a file."""
    tree, made = ast.parse(file.read_bytes()), []
    for at, node in enumerate(_executed(_functions(tree)[number])):
        for choice, _ in enumerate(_changes(node)):
            function = _functions(other := copy.deepcopy(tree))[number]
            changed = _executed(function)[at]
            before, place = ast.unparse(changed), f"{file.relative_to(ROOT)}:{changed.lineno}"
            list(_changes(changed))[choice]()
            words = f"{before}  ->  {ast.unparse(changed)}".replace("\n", " ")
            made.append(Mutant(file, f"{place} {function.name}", words, ast.unparse(other)))
    return made


def _changes(node: Any) -> Iterator[Callable[[], Any]]:
    """Yield a function for each change of a node; it makes the change in place."""
    kind, parts = type(node), vars(node)
    if kind is ast.Compare and len(parts["ops"]) == 1:
        yield lambda: parts.update(ops=[OPPOSITE[type(parts["ops"][0])]()])
    if type(parts.get("op")) in OPPOSITE:
        yield lambda: parts.update(op=OPPOSITE[type(parts["op"])]())
    if type(parts.get("op")) is ast.Not:
        yield lambda: parts.update(operand=ast.UnaryOp(ast.Not(), parts["operand"]))
    if kind is ast.Constant and isinstance(value := parts["value"], int | float):
        yield lambda: parts.update(value=not value if isinstance(value, bool) else value + 1)
    for name in ("id", "attr"):
        if parts.get(name) in OPPOSITE:
            yield lambda name=name: parts.update({name: OPPOSITE[parts[name]]})
    if kind in (ast.If, ast.IfExp):
        yield lambda: parts.update(test=ast.UnaryOp(ast.Not(), parts["test"]))
    for at in range(len(parts["keywords"]) if kind is ast.Call else 0):
        yield lambda at=at: parts["keywords"].pop(at)


def _executed(function: Any) -> list[Any]:
    """Return the nodes of a function without its annotations and decorators."""
    skipped = set()
    for node in ast.walk(function):
        hints = [getattr(node, name, None) for name in ("annotation", "returns")]
        for hint in filter(None, [*hints, *getattr(node, "decorator_list", [])]):
            skipped |= {id(part) for part in ast.walk(hint)}
    return [node for node in ast.walk(function) if id(node) not in skipped]


def _functions(node: ast.AST) -> list[Any]:
    """Return the functions that are not inside another."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return [node]
    return [function for inner in ast.iter_child_nodes(node) for function in _functions(inner)]


def tests_of(file: Path, copied: Path) -> list[str]:
    """Return the copy's tests of a file's name, and those of the nearest folder that has some."""
    inner = file.relative_to(SOURCE).parent
    while not [*(copied / "tests" / inner).rglob("test_*.py")]:
        inner = inner.parent
    folder = copied / "tests" / inner
    golden = [copied / "tests" / "golden"] if inner.parts[0] == "studies" else []
    paths = [*sorted(folder.rglob(f"test_{file.stem}*.py")), folder, *golden]
    return [str(path.relative_to(copied)) for path in paths]


def outcome(mutant: Mutant, copied: Path) -> str:
    """Return which test notices a change; a change that none notices, or too late, is to be judged."""
    changed = copied / mutant.file.relative_to(ROOT)
    original = changed.read_bytes()
    changed.write_text(mutant.text, encoding="utf-8")
    done = tested(copied, ["timeout", LIMIT], ["-x", *tests_of(mutant.file, copied)])
    changed.write_bytes(original)
    by = re.findall(r"^(?:FAILED|ERROR) (\S*)", done.stdout, re.MULTILINE)
    if by and done.returncode in (1, 2):
        return f"CAUGHT by {by}"
    ended = {0: "SURVIVED", 124: "TIMED OUT"}
    return ended.get(done.returncode, f"NOT TESTED: {done.stdout[-300:]} {done.stderr[-300:]}")


def tested(copied: Path, before: list[str], options: list[str]) -> subprocess.CompletedProcess[str]:
    """Run fast tests of the copy, on its own package."""
    words = [*before, "nice", "-n", "5", sys.executable, "-m", "pytest", *options]
    words += ["-m", "not slow and not gpu", "-q", "-n", "0", "-p", "no:cacheprovider"]
    paths = os.environ | {"PYTHONPATH": str(copied / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(words, cwd=copied, env=paths, capture_output=True, text=True)


def check(copied: Path) -> None:
    """Check that the unchanged copy's own package is tested, and that all of its tests can be collected.

    Raises:
        SystemExit: If not, for then every change would seem to be caught.
    """
    words = [sys.executable, "-c", "import identilens; print(identilens.__file__)"]
    paths = os.environ | {"PYTHONPATH": str(copied / "src")}
    found = subprocess.run(words, cwd=copied, env=paths, capture_output=True, text=True)
    done = tested(copied, [], ["--collect-only", "tests"])
    if str(copied) not in found.stdout or done.returncode:
        sys.exit(f"The unchanged copy cannot be tested: {found}\n{done.stdout[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the draw")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    files = [file for name in PACKAGES for file in sorted((SOURCE / name).rglob("*.py"))]
    functions = [
        (file, at)
        for file in files
        for at, _ in enumerate(_functions(ast.parse(file.read_bytes())))
    ]
    draw.shuffle(functions)
    drawn = (draw.choice(made) for function in functions if (made := mutants(*function)))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "copy"
        shutil.copytree(ROOT, copied, ignore=shutil.ignore_patterns(".git", ".venv", "build"))
        check(copied)
        for number, mutant in zip(range(given.count), drawn, strict=False):
            if number in (given.only or range(given.count)):
                print(f"{number}: {mutant.place}\n    {mutant.change}")
                print(f"    {outcome(mutant, copied)}", flush=True)


if __name__ == "__main__":
    main()
