"""Data flows one way: the imports of every file are read, and a forbidden arrow fails."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "identilens"

TOPICS = {"attention", "tokens", "mixing", "encoder", "structure", "dyck"}
ON_TOP = {"report", "explorer", "cli", "reproduce"}
ALLOWED = {
    "errors": set(),
    "compressed": set(),
    "demo": set(),
    "linalg": {"errors"},
    "models": {"errors"},
    "results": {"errors"},
    **{topic: {"errors", "compressed", "linalg", "attention"} for topic in TOPICS},
    "report": {"errors", "results", "linalg", *TOPICS},
    "explorer": {"errors", "results", "linalg", "models", "report", *TOPICS},
    "cli": {"errors", "compressed", "results", "models", "report", "explorer", "reproduce", "demo", *TOPICS},
    "reproduce": {"errors", "results", "models", "report", "cli", *TOPICS},
}
# Files that bring models and measures together: texts in, results out.
ANALYSES = {
    "attention/audit.py", "attention/audit_runner.py", "attention/audit_tables.py",
    "attention/text_measure.py", "attention/selfcheck.py", "attention/alternatives.py",
    "attention/head_alternatives.py", "attention/interval_analysis.py", "attention/put_back.py",
    "attention/logit_rank_analysis.py", "mixing/analysis.py",
    "encoder/training.py", "encoder/sweeps.py", "encoder/rank_lengths.py",
    "tokens/analysis.py", "tokens/extraction.py", "tokens/runner.py",
    "dyck/analysis.py", "dyck/measuring.py", "dyck/misleading.py", "dyck/construction_analysis.py",
    "dyck/pruning_analysis.py",
    "structure/analysis.py", "structure/closing.py", "structure/lengths.py", "structure/perturbation_study.py",
    "structure/reversal_study.py", "structure/runner.py", "structure/state.py",
}  # fmt: skip
# A result writes its own report when asked to: the one arrow that points up, inside the method.
EXCEPTIONS = {
    ("results/audit.py", "report"),
    ("results/mixing.py", "report"),
    ("results/alternatives.py", "report"),
    ("results/intervals.py", "report"),
    ("results/structure.py", "report"),
    ("results/tokens.py", "report"),
    ("results/dyck.py", "report"),
}


def arrows():
    for file in sorted(SOURCE.rglob("*.py")):
        name = file.relative_to(SOURCE)
        if len(name.parts) == 1 and name.stem == "__init__":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            modules = [node.module] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                if module and module.startswith("identilens."):
                    yield str(name), name.parts[0].removesuffix(".py"), module.split(".")[1]


def forbidden(found):
    for file, package, target in found:
        allowed = ALLOWED[package] | {package}
        if file in ANALYSES:
            allowed = allowed | {"models", "results"}
        if target not in allowed and (file, target) not in EXCEPTIONS:
            yield f"{file} imports {target}"


def test_no_forbidden_arrow():
    assert list(forbidden(arrows())) == []


def test_a_forbidden_arrow_would_be_found():
    assert list(forbidden([("linalg/rank.py", "linalg", "models")])) == ["linalg/rank.py imports models"]
    assert list(forbidden([("attention/rank.py", "attention", "models")])) == ["attention/rank.py imports models"]
    assert len(list(arrows())) > 40


def test_only_models_imports_transformers_internals():
    for file in sorted(SOURCE.rglob("*.py")):
        package = file.relative_to(SOURCE).parts[0]
        if package in ("models", "encoder", "dyck"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.module.startswith(
                    ("transformers.models", "transformers.masking", "transformers.modeling")
                ), file


def test_init_files_only_reexport():
    for file in sorted(SOURCE.rglob("__init__.py")):
        for node in ast.parse(file.read_text(encoding="utf-8")).body:
            docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            assert docstring or isinstance(node, ast.ImportFrom), f"{file} does more than re-export"


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_nothing_of_the_machine_is_in_the_code(file):
    text = file.read_text(encoding="utf-8")
    assert "from __future__ import annotations" not in text
    assert "/work/" not in text
