"""``identilens lab dyck`` as a person uses it."""

import pytest

from helpers.command import failing


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "--depth", 0], "expected --depth of at least 1; got 0"),
        (["train", "--open-probability", 1], "expected --open-probability below 1; got 1.0"),
        (["train", "--length", 7], "an even length for complete words, got 7"),
        (["train", "--seeds", "0-99999"], "seeds at once need about"),
        (
            ["train", "--lengths", "400"],
            "expected --lengths as two ends such as 400-500; got '400'",
        ),
    ],
)
def test_unusable_options(arguments, expected, tmp_path):
    assert expected in failing("lab", "dyck", *arguments, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
