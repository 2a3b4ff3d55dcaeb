"""``identilens tokens`` as a person uses it: exit codes, messages, files, a run that is interrupted."""

import pytest

from helpers.command import failing, identilens

WORDS = [
    "storm",
    "ferry",
    "harbour",
    "pass",
    "snow",
    "keeper",
    "lamp",
    "night",
    "road",
    "bridge",
    "winter",
    "letter",
]
LINES = [f"The {one} and the {other} were closed." for one in WORDS[:6] for other in WORDS[6:9]]
QUICK = ("--folds", 2, "--learning-rates", 0.01, "--max-epochs", 2)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(bundled_path, file, tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "run"
    choices = ("--probes", "naive,ridge,linear", "--distances", "l2", *QUICK)
    done = identilens(
        "tokens", "--model", bundled_path, "--file", file, *choices, "--out", out, code=0
    )
    assert "Ridge probe, L2:" in done.output
    assert "report.html" in done.output
    return out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--folds", 99], "sentences"),
        (["--experiment", "neighbours", "--offsets", 40], "neighbours"),
        (["--probes", "ridge", "--distances", "cosine"], "distances"),
        (["--layers", "0,7"], "layers"),
        (["--probes", "forest"], "probes"),
        (["--pairs"], "sentences"),
    ],
)
def test_unusable_options(arguments, expected, bundled_path, file, tmp_path):
    assert expected in failing(
        "tokens", "--model", bundled_path, "--file", file, *arguments, "--out", tmp_path / "out"
    )
    assert not (tmp_path / "out").exists()
