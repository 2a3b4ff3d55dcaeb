"""Examples in docstrings give what they say, and every public name has one."""

import doctest
import re
import tempfile
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import numpy as np
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
DECIMAL = re.compile(r"\d+\.\d+(?:e[-+]\d+)?")


def example_of(thing):
    """The source of the examples in a docstring."""
    return "".join(one.source for one in doctest.DocTestParser().get_examples(thing.__doc__ or ""))


class Checker(doctest.OutputChecker):
    """Lets decimals differ by 1e-5 of themselves: single precision rounds otherwise on another processor."""

    def check_output(self, want, got, flags):
        """Return whether an example printed what it should."""
        if super().check_output(want, got, flags):
            return True
        numbers = [np.array(DECIMAL.findall(text), float) for text in (want, got)]
        return (
            len(numbers[0]) == len(numbers[1])
            and np.allclose(*numbers, rtol=1e-5, atol=1e-6)
            and super().check_output(DECIMAL.sub("#", want), DECIMAL.sub("#", got), flags)
        )


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runner = doctest.DocTestRunner(Checker(), optionflags=FLAGS)
    for test in doctest.DocTestFinder().find(import_module(name), name):
        runner.run(test)
    assert runner.tries > 0
    assert runner.failures == 0


PUBLIC = [name for name in identilens.__all__ if name not in ("claims", "errors", "lab")] + [
    f"{package.__name__.removeprefix('identilens.')}.{name}"
    for package in (identilens.claims, identilens.lab)
    for name in package.__all__
]


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name):
    thing = resolve_name(f"identilens:{name}")
    assert f"idl.{name}" in example_of(thing) or (
        issubclass(thing, Result) and example_of(thing)
    ), name
