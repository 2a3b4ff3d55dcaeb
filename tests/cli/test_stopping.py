"""A run that is stopped from outside: one clear line, the usual exit code, and it can be resumed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from helpers.command import command, identilens

HELPERS = Path(__file__).parents[1]
PROGRAM = f"""
import sys, time
sys.path.insert(0, {str(HELPERS)!r})
from helpers import toy
from identilens.studies import registry
registry.STUDIES["toy"] = registry.Entry("helpers.toy:ToyStudy", "Square.", "helpers.toy:ToySettings", takes=())
run = toy.ToyStudy.run
def slow(self, part):
    if part == 2 and "--resume" not in sys.argv:
        print("working", flush=True)
        time.sleep(60)
    return run(self, part)
toy.ToyStudy.run = slow
from identilens.cli.app import main
main()
"""


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_a_stopped_run_says_so_and_is_resumed(tmp_path, sent, code):
    command = [
        sys.executable, "-c", PROGRAM, "toy", "--layers", "1-4", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "working\n"
    process.send_signal(sent)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code
    if sent != signal.SIGKILL:
        assert f"error: stopped by {sent.name}." in errors
        assert "the same command with --resume continues." in errors
    assert "Traceback" not in errors
    assert not list((tmp_path / "run").rglob("*.identilens-tmp"))
    again = subprocess.run(
        [*command, "--resume"], capture_output=True, text=True, timeout=120, check=False
    )
    assert again.returncode == 0, again.stderr
    assert pl.read_parquet(tmp_path / "run" / "table.parquet")["number"].to_list() == [1, 2, 3, 4]
    assert not (tmp_path / "run" / "parts").exists()


def test_a_reader_that_leaves_ends_the_command_without_a_word():
    """As `identilens --help | head -0`: the pipe is closed before anything is written."""
    read, write = os.pipe()
    os.close(read)
    process = subprocess.run(
        command("--help"), stdout=write, stderr=subprocess.PIPE, text=True, check=False, timeout=300
    )
    os.close(write)
    assert process.returncode
    assert process.stderr == ""


def test_a_pipe_that_breaks_does_not_kill_the_process():
    """A worker that dies leaves a broken pipe: SIGPIPE's default action would end the whole run."""
    identilens("--version", code=0)
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
