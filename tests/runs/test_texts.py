"""Texts from files and lists."""

import pytest

from identilens.errors import InputError
from identilens.runs.texts import read_texts


def test_pairs_from_every_kind_of_input(tmp_path):
    (tmp_path / "a.txt").write_text("one\teins\n\ntwo\tzwei\n", encoding="utf-8")
    (tmp_path / "a.tsv").write_text("en\tde\none\teins\ntwo\tzwei\n", encoding="utf-8")
    expected = [("one", "eins"), ("two", "zwei")]
    assert read_texts(tmp_path / "a.txt", pairs=True) == expected
    assert read_texts(tmp_path / "a.tsv", columns=["en", "de"], pairs=True) == expected
    assert read_texts(["one", "eins", "two", "zwei"], pairs=True) == expected
    with pytest.raises(InputError, match=r"--pairs needs --column twice.*got only 'en'"):
        read_texts(tmp_path / "a.tsv", columns=["en"], pairs=True)
    (tmp_path / "b.txt").write_text("one\teins\nalone\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"b\.txt, line 2: --pairs expects two sentences with a tab.*got 1 part\."):
        read_texts(tmp_path / "b.txt", pairs=True)
