"""README and the start page, followed literally in an empty folder."""

import os
import re
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LEFT_OUT = {
    "make ": "makes an environment of its own and runs for minutes; what it runs is tested by itself",
    "identilens explore": "serves a page until it is stopped; tests/explorer has it",
    "pip install": "downloads; `make release-check` installs the built package",
}


def blocks(page):
    """The kind and the text of each block of code on a page, those of Python that follow one another as one."""
    found = re.findall(
        r"^```(\w+)\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    return [
        (kind, "\n".join(text for _, text in group))
        for kind, group in groupby(found, key=lambda one: one[0])
    ]


def typed(block):
    """What is typed in a block of the console, but for lines that are left out."""
    lines = re.findall(r"^\$ (.*(?:\\\n.*)*)", block, re.MULTILINE)
    return "\n".join(line for line in lines if not line.startswith(tuple(LEFT_OUT)))


@pytest.mark.parametrize("page", ["README.md", "docs/start.md", "docs/settings.md"])
@pytest.mark.usefixtures("bundled_path")
def test_a_page_can_be_followed(page, tmp_path):
    environment = {
        **os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    printed = ""
    for kind, text in blocks(ROOT / page):
        if kind == "toml":
            (tmp_path / "settings.toml").write_text(text)
            (tmp_path / "texts.txt").write_text(
                "The ferry left the harbour before dawn.\nNobody came.\n"
            )
            continue
        program = {"python": [sys.executable, "-"], "console": ["bash", "-e"]}[kind]
        done = subprocess.run(
            program, input=text if kind == "python" else typed(text), cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stderr}"
        printed += done.stdout
    quoted = " ".join(
        re.findall(r"^> (.*)", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    )
    said = re.findall(r"[\d.,]+ %", quoted)
    printed = " ".join(printed.split())
    assert [number for number in said if number not in printed] == []
    assert page == "docs/settings.md" or len(said) > 3
