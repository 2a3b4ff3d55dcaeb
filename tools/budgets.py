"""Measures of the package's size and shape that packing lines does not change, each beside its limit.

    python tools/budgets.py

A limit only falls: a step lowers it to what it reached. Who needs nodes takes them out elsewhere. Tests, tools,
benchmarks and what is not Python are counted, too, so that nothing moves there.
"""

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "identilens"
WINGS = ("lab", "reproduce")
"""Packages that the core does not import."""

LIMITS = {
    "nodes": 231_085,
    "nodes of the core": 193_710,
    "nodes of linalg": 16_600,
    "nodes of measures": 30_195,
    "nodes of models": 46_950,
    "nodes of runs": 14_490,
    "nodes of charts": 9_955,
    "nodes of studies": 64_635,
    "nodes of explorer": 5_620,
    "nodes of cli": 5_000,
    "nodes of lab": 27_390,
    "nodes of reproduce": 9_985,
    "nodes of tests": 199_335,
    "nodes of tools and benchmarks": 29_200,
    "lines of scripts, styles and templates": 2_395,
    "mean characters of a line of code": 40,
    "share of private helpers used once": 0.5,
    "modules with one importer": 33,
    "vague names": 0,
    "lines of the longest function": 60,
    "lines of the longest file": 500,
}
VAGUE = {"one", "found", "place", "own", "at", "given", "whole", "seen"}
"""Words that name nothing: what is called so has a name in the field's terms."""
_WRITTEN = (".js", ".css", ".html")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Module:
    """A module of the package: its name, its text and its syntax tree."""

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def read(cls, file: Path, package: Path = SOURCE) -> "Module":
        """Return the module of a file, named within a package."""
        text = file.read_text(encoding="utf-8")
        parts = ("identilens", *file.relative_to(package).with_suffix("").parts)
        return cls(".".join(parts).removesuffix(".__init__"), text, ast.parse(text))

    @property
    def folder(self) -> str:
        """The folder of the package that it counts to."""
        first = [*self.name.split("."), ""][1]
        return "studies" if first == "claims" else first

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
            for text in self.docstrings()
            for line in range(text.lineno, (text.end_lineno or 0) + 1)
        }
        lines = self.text.splitlines()
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        used = {
            line
            for token in tokens
            if token.string.strip() and token.type != tokenize.COMMENT
            for line in range(token.start[0], token.end[0] + 1)
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

    def vague_names(self) -> list[ast.AST]:
        """Return the variables, arguments, functions and classes with a name of `VAGUE`."""
        named = (ast.Name, ast.arg, ast.ClassDef, *_FUNCTIONS)
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, named)]
        keys = "id", "arg", "name"
        return [node for node in nodes if VAGUE & {getattr(node, key, "") for key in keys}]

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


def nodes_below(folder: str) -> int:
    """Return the nodes of all Python files in a folder beside the package."""
    files = sorted((ROOT / folder).rglob("*.py"))
    return sum(Module.read(file, ROOT / folder).nodes() for file in files)


def figures() -> dict[str, float]:
    """Return the measures, under the names of their limits."""
    every = modules()
    lines = [line for module in every for line in module.code().values()]
    helpers = [(name, module) for module in every for name in module.private_helpers()]
    # A name that stands twice is defined once and used once.
    once = [name for name, module in helpers if len(re.findall(rf"\b{name}\b", module.text)) <= 2]
    names = {module.name for module in every}
    importers = Counter(target for module in every for target in module.imports(names))
    # A package's names are importers of their own kind, and so are places in words, such as a study's in the registry.
    named = re.findall(r'"(identilens[.\w]+):', "".join(module.text for module in every))
    single = {name for name, count in importers.items() if count == 1} - {*named}
    nodes = Counter()
    for module in every:
        nodes[module.folder] += module.nodes()
    return {
        "nodes": nodes.total(),
        "nodes of the core": nodes.total() - sum(nodes[wing] for wing in WINGS),
        **{f"nodes of {folder}": count for folder, count in nodes.items()},
        "nodes of tests": nodes_below("tests"),
        "nodes of tools and benchmarks": nodes_below("tools") + nodes_below("benchmarks"),
        "lines of scripts, styles and templates": sum(
            len(file.read_text(encoding="utf-8").splitlines())
            for file in SOURCE.rglob("*")
            if file.suffix in _WRITTEN
        ),
        "mean characters of a line of code": round(sum(map(len, lines)) / len(lines), 1),
        "share of private helpers used once": round(len(once) / len(helpers), 3),
        "modules with one importer": len(single),
        "vague names": sum(len(module.vague_names()) for module in every),
        "lines of the longest function": max(
            size for module in every for size in module.function_lines().values()
        ),
        "lines of the longest file": max(len(module.text.splitlines()) for module in every),
    }


def main() -> int:
    """Print every measure beside its limit; the exit code is 1 if one is above it."""
    measured = figures()
    for name, limit in LIMITS.items():
        print(f"{name:40}{measured[name]:>10,}   limit {limit:>9,}")
    return int(any(measured[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
