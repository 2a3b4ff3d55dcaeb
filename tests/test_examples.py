"""Examples in docstrings give what they say, and every public name has one."""

import doctest
import tempfile
from importlib import import_module
from pathlib import Path

import pytest

import identilens
from identilens.runs.result import Result

SOURCE = Path(__file__).parents[1] / "src"
WITH_EXAMPLES = [
    ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    for file in sorted(SOURCE.rglob("*.py"))
    if "\n        >>> " in file.read_text(encoding="utf-8")
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WITHOUT = {"to_pandas": "pandas is no dependency"}


def example_of(thing):
    """The source of the examples in a docstring."""
    return "".join(one.source for one in doctest.DocTestParser().get_examples(thing.__doc__ or ""))


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    results = doctest.testmod(import_module(name), optionflags=FLAGS)
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("name", identilens.__all__)
def test_a_public_name_has_an_example(name):
    thing = getattr(identilens, name)
    assert f"idl.{name}" in example_of(thing) or (issubclass(thing, Result) and example_of(thing)), name


@pytest.mark.parametrize("kind", [identilens.Lens, Result])
def test_a_public_method_has_an_example(kind):
    shown = example_of(kind) + "".join(map(example_of, vars(kind).values()))
    members = [
        name for name, one in vars(kind).items()
        if not name.startswith("_") and (callable(one) or isinstance(one, property | classmethod))
    ]  # fmt: skip
    assert len(members) > 10
    assert [name for name in members if f".{name}" not in shown and name not in WITHOUT] == []
