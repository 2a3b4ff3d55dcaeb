"""Options with absurd values, and names that Markdown would read: short errors, and text as it is."""

import polars as pl
import pytest

from helpers.command import failing
from identilens.errors import SettingError
from identilens.runs.tables import markdown_table, markdown_text

LONG = "a" * 100_000


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("--layers", "0-99999999999999999999"), "expected --layers as numbers and ranges"),
        (("--layers", LONG), "expected --layers as numbers and ranges"),
        ((f"--{LONG}", "3"), "Unknown option"),
        ((LONG,), "texts are given with --text or --file"),
    ],
)
def test_absurd_options_are_short_errors(tmp_path, typed, expected):
    given = ("--model", "bundled", "--text", "Snow fell.", "--out", tmp_path / "run")
    message = failing("audit", *given, *typed)
    assert expected in message
    assert len(message) < 600


def test_a_setting_error_is_short_in_python():
    assert len(str(SettingError("layers", "as numbers", LONG))) < 300


def test_markdown_shows_names_as_they_are():
    name = "a|b <img src=x> [c](d) `e`\nf"
    text = r"a\|b \<img src=x\> \[c\](d) \`e\` f"
    assert markdown_text(name) == text
    assert markdown_table(pl.DataFrame({"model": [name]})).splitlines()[-1] == f"| {text} |"
