"""A process that dies at any moment, and what its run's folder contains afterwards."""

import shutil
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from polars.testing import assert_frame_equal

from helpers.toy import Toy, toy

CHANGES = ("replace", "unlink", "rmdir", "mkdir", "touch", "chmod")


class Killed(BaseException):
    """The process is no more."""


def contents(folder):
    """Every file of a run, but for those that say when and by what it was made."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name not in (".lock", "provenance.json", "manifest.txt", "states.json")
    }


@contextmanager
def killed_at(point, monkeypatch):
    """The process dies at the so-manieth change of the file system: nothing that comes later has an effect.

    Yields a list of one number: how many changes are left.
    """
    left = [point]
    with monkeypatch.context() as patched:
        for name in CHANGES:
            change = getattr(Path, name)

            def counted(*given, _change=change, **options):
                if left[0] < 0:
                    return None
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return _change(*given, **options)

            patched.setattr(Path, name, counted)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        with suppress(Killed):
            yield left


def same(found, expected):
    """Both results have the same tables, matrices and tokens."""
    for name in Toy.schema:
        assert_frame_equal(getattr(found, name), getattr(expected, name))
    assert {key: found.matrices[key].tolist() for key in found.matrices} == {
        key: expected.matrices[key].tolist() for key in expected.matrices
    }
    assert {text: dict(names) for text, names in found.tokens.items()} == {
        text: dict(names) for text, names in expected.tokens.items()
    }


def interrupted(folder, part=2):
    """A run is stopped by Ctrl-C in one of its parts."""
    with pytest.raises(KeyboardInterrupt):
        toy(layers="1-4", fail=part, out=folder)
