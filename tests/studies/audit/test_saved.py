"""Audits that are saved, resumed after a kill or a full disk, and read again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from safetensors import safe_open

import identilens as idl
from helpers.audits import TEXTS
from identilens.errors import OutputFolderError


def test_save_and_load(bundled, tmp_path):
    result = idl.audit(bundled, TEXTS, examples=1, certain_rows=1, layers=(0, 3))
    result.save(tmp_path / "run")
    again = idl.Audit.load(tmp_path / "run")
    assert_frame_equal(result.table, again.table)
    assert_frame_equal(result.token_types, again.token_types)
    assert again.summary() == result.summary()
    assert set(again.matrices) == set(result.matrices)
    assert len({key.partition(".")[0] for key in result.matrices}) == 1, "one example"
    for key, matrix in result.matrices.items():
        assert torch.equal(again.matrices[key], matrix)
    assert again.tokens == result.tokens
    with pytest.raises(OutputFolderError, match="contains another run"):
        idl.audit(bundled, TEXTS[:1], certain_rows=1, layers=(0, 3)).save(tmp_path / "run")


def test_folder_run_equals_the_run_in_memory(bundled, tmp_path):
    memory = idl.audit(bundled, TEXTS, examples=2, certain_rows=1, layers=(0, 3))
    disk = idl.audit(
        bundled, TEXTS, examples=2, out=tmp_path / "run", certain_rows=1, layers=(0, 3)
    )
    assert_frame_equal(memory.table, disk.table)
    assert_frame_equal(memory.token_types, disk.token_types)
    assert set(memory.matrices) == set(disk.matrices)
    assert not (tmp_path / "run" / "parts").exists()
    for text in memory.tokens:
        with safe_open(
            tmp_path / "run" / "matrices" / f"text{text}.safetensors", framework="pt"
        ) as file:
            assert set(file.keys()) == {
                key for key in memory.matrices if key.startswith(f"text{text}.")
            }


def test_resume_rules(bundled, tmp_path):
    folder = tmp_path / "run"
    idl.audit(bundled, TEXTS, out=folder, certain_rows=0)
    with pytest.raises(
        OutputFolderError, match="already contains this run, finished. Pass resume=True"
    ):
        idl.audit(bundled, TEXTS, out=folder, certain_rows=0)
    before = (folder / "table.parquet").read_bytes()
    idl.audit(bundled, TEXTS, out=folder, resume=True, certain_rows=0)
    assert (folder / "table.parquet").read_bytes() == before
    with pytest.raises(OutputFolderError, match="contains another run"):
        idl.audit(bundled, TEXTS, out=folder, resume=True, layers=(0,), certain_rows=0)
    assert (folder / "table.parquet").read_bytes() == before
    changed = idl.audit(bundled, TEXTS, out=folder, overwrite=True, layers=(0,), certain_rows=0)
    assert set(changed.table["layer"]) == {0}


def test_a_killed_run_resumes_to_the_same_table(bundled_path, tmp_path):
    script = (
        "import sys, identilens as idl, torch; torch.set_num_threads(1);"
        "import identilens.studies.audit.study as module; module._PART = 2;"
        "lens = idl.load(sys.argv[1]);"
        "texts = [f'Text number {i} speaks of {i * i} ships and ' + 'more ' * (i % 7) for i in range(60)];"
        "idl.audit(lens, texts, out=sys.argv[2], resume='resume' in sys.argv, examples=3, certain_rows=0)"
    )
    command = [sys.executable, "-c", script, str(bundled_path)]
    killed = subprocess.Popen([*command, str(tmp_path / "killed")], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("parts/*.safetensors")):
        assert time.monotonic() < deadline
        assert killed.poll() is None
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    done = len(list((tmp_path / "killed").glob("parts/*.safetensors")))
    assert 0 < done < 30
    with pytest.raises(OutputFolderError, match="was interrupted. Finish it with "):
        idl.Audit.load(tmp_path / "killed")
    subprocess.run(
        [*command, str(tmp_path / "killed"), "resume"], check=True, stderr=subprocess.DEVNULL
    )
    subprocess.run([*command, str(tmp_path / "whole")], check=True, stderr=subprocess.DEVNULL)
    for name in ("table", "token_types"):
        assert_frame_equal(
            pl.read_parquet(tmp_path / "killed" / f"{name}.parquet"),
            pl.read_parquet(tmp_path / "whole" / f"{name}.parquet"),
            check_exact=True,
        )
    assert not list(Path(tmp_path / "killed").rglob("*.tmp"))


def test_a_full_disk_loses_nothing(bundled, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setattr(sys.modules["identilens.studies.audit.study"], "_PART", 1)
    written, original = [], Path.write_bytes

    def fill_up(path, content):
        if ".safetensors" in path.name:
            if len(written) == 2:
                original(path, content[:100])
                raise OSError(28, "No space left on device")
            written.append(path)
        return original(path, content)

    monkeypatch.setattr(Path, "write_bytes", fill_up)
    with pytest.raises(OutputFolderError, match=r"No space left on device.*resume=True"):
        idl.audit(bundled, TEXTS, out=folder, certain_rows=1, layers=(0, 3))
    assert len(written) == 2
    assert not list(folder.rglob("*.tmp"))
    monkeypatch.setattr(Path, "write_bytes", original)
    resumed = idl.audit(bundled, TEXTS, out=folder, resume=True, certain_rows=1, layers=(0, 3))
    assert_frame_equal(
        resumed.table,
        idl.audit(bundled, TEXTS, certain_rows=1, layers=(0, 3)).table,
        check_exact=True,
    )
