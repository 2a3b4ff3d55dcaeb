"""Measures of the package's size and shape that packing lines does not change, each beside its limit.

    python tools/budgets.py

A limit is raised only in a commit of its own, which says why.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "identilens"
WINGS = ("lab", "reproduce")
"""Packages that the core does not import."""

LIMITS = {
    "syntax-tree nodes": 380_600,
    "syntax-tree nodes of the core": 322_600,
    "mean characters of a line of code": 40,
    "share of private helpers used once": 0.5,
    "modules with one importer": 50,
    "lines of the longest function": 60,
    "lines of the longest file": 500,
}
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A module of the package: its name, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, file: Path) -> "Module":
        """Return the module of a file."""
        text = file.read_text(encoding="utf-8")
        parts = ("identilens", *file.relative_to(SOURCE).with_suffix("").parts)
        return cls(".".join(parts).removesuffix(".__init__"), text, ast.parse(text))

    @property
    def is_core(self) -> bool:
        """Whether it is in none of the wings."""
        return self.name.split(".")[1:2] not in ([wing] for wing in WINGS)

    def docstrings(self) -> list[ast.Constant]:
        """Return the docstrings of the module, its classes and its functions."""
        documented = [node for node in ast.walk(self.tree) if isinstance(node, _DOCUMENTED)]
        return [node.body[0].value for node in documented if ast.get_docstring(node) is not None]  # pyright: ignore

    def nodes(self) -> int:
        """Return the number of syntax-tree nodes, docstrings left out."""
        return sum(1 for _ in ast.walk(self.tree)) - 2 * len(self.docstrings())

    def code(self) -> dict[int, str]:
        """Return the lines with code, by number: neither blank nor comment nor docstring."""
        hidden = {
            line
            for one in self.docstrings()
            for line in range(one.lineno, (one.end_lineno or 0) + 1)
        }
        lines = self.text.splitlines()
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        empty = (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
            tokenize.ENDMARKER,
        )
        used = {
            line
            for one in tokens
            if one.type not in empty
            for line in range(one.start[0], one.end[0] + 1)
        }
        return {line: lines[line - 1].strip() for line in sorted(used - hidden)}

    def function_lines(self) -> dict[str, int]:
        """Return the lines of every function, its docstring left out."""
        sizes = {}
        for node in ast.walk(self.tree):
            if isinstance(node, _FUNCTIONS):
                first = node.body[0]
                lines = (node.end_lineno or 0) - node.lineno + 1
                if ast.get_docstring(node) is not None:
                    lines -= (first.end_lineno or 0) - first.lineno + 1
                sizes[f"{self.name}:{node.lineno} {node.name}"] = lines
        return sizes

    def private_helpers(self) -> list[str]:
        """Return the names of private functions, methods and classes."""
        named = [
            node for node in ast.walk(self.tree) if isinstance(node, (*_FUNCTIONS, ast.ClassDef))
        ]
        return [node.name for node in named if re.match(r"_[a-z]|_[A-Z]", node.name)]

    def imports(self, names: set[str]) -> set[str]:
        """Return the modules among some that this one imports."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                members = {f"{node.module}.{alias.name}" for alias in node.names} & names
                found |= members or {node.module} & names
        return found - {self.name}


def modules() -> list[Module]:
    """Return every module of the package."""
    return [Module.read(file) for file in sorted(SOURCE.rglob("*.py"))]


def figures() -> dict[str, float]:
    """Return the measures, under the names of their limits."""
    every = modules()
    lines = [line for module in every for line in module.code().values()]
    helpers = [(name, module) for module in every for name in module.private_helpers()]
    # A name that stands twice is defined once and used once.
    once = [name for name, module in helpers if len(re.findall(rf"\b{name}\b", module.text)) <= 2]
    names = {module.name for module in every}
    importers = Counter(target for module in every for target in module.imports(names))
    # A package's names and a study's entry in the registry are importers of their own kind.
    single = [name for name, count in importers.items() if count == 1]
    return {
        "syntax-tree nodes": sum(module.nodes() for module in every),
        "syntax-tree nodes of the core": sum(module.nodes() for module in every if module.is_core),
        "mean characters of a line of code": round(sum(map(len, lines)) / len(lines), 1),
        "share of private helpers used once": round(len(once) / len(helpers), 3),
        "modules with one importer": len(single),
        "lines of the longest function": max(
            size for module in every for size in module.function_lines().values()
        ),
        "lines of the longest file": max(len(module.text.splitlines()) for module in every),
    }


def main() -> int:
    """Print every measure beside its limit; the exit code is 1 if one is above it."""
    found = figures()
    for name, figure in found.items():
        print(f"{name:38}{figure:>12,}   limit {LIMITS[name]:,}")
    return int(any(figure > LIMITS[name] for name, figure in found.items()))


if __name__ == "__main__":
    sys.exit(main())
