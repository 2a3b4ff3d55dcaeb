"""The small files of a run: requests, options, comparisons, locks, folders."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from helpers.toy import Toy, ToyStudy, toy
from identilens.errors import InputError
from identilens.runs.files import Manifest, write_folder
from identilens.runs.provenance import (
    Identity,
    differences,
    provenance,
    subject,
)  # fmt: skip
from identilens.runs.request import NAME, input_options, read_request, write_request
from identilens.runs.result import Finding
from identilens.runs.study import study_function
from identilens.runs.toml import read_toml, toml_value


def test_options_as_toml(tmp_path):
    file = tmp_path / "options.toml"
    values = {"a": [1, 0.5, True], "b": "x\x7fy\n", "c": False, "d": ("p", "q")}
    file.write_text("".join(f"{name} = {toml_value(value)}\n" for name, value in values.items()))
    assert read_toml(file) == values | {"d": ["p", "q"]}
    with pytest.raises(TypeError):
        toml_value(None)
    with pytest.raises(InputError, match="cannot"):
        read_toml(tmp_path / "none.toml")
    file.write_text("a = ")
    with pytest.raises(InputError, match="valid"):
        read_toml(file)


def test_a_request_is_read_as_it_was_written(tmp_path, monkeypatch):
    there = tmp_path / "texts.txt"
    there.touch()
    options = {"file": there, "layers": (1, 2), "share": 0.5, "none": None, "odd": object()}
    monkeypatch.chdir(tmp_path)
    (tmp_path / "encoder").mkdir()
    options |= {"model": "encoder", "dataset": "hub/name", "kind": "encoder"}
    write_request(tmp_path, "lab toy", {"texts": ..., **options})
    found, lost = read_request(tmp_path, "lab toy")
    assert found == {
        "file": str(there), "layers": [1, 2], "share": 0.5, "model": str(tmp_path / "encoder"),
        "dataset": "hub/name", "kind": "encoder",
    }, "a model's folder is found from everywhere; a word that a folder has as its name stays a word"  # fmt: skip
    assert lost == ["texts", "odd"]
    assert (tmp_path / NAME).read_text().splitlines()[0] == (
        f"# Run it again: identilens lab toy --config {NAME} --out NEW"
    )
    with pytest.raises(InputError, match="no options of mixing"):
        read_request(tmp_path, "mixing")
    with pytest.raises(InputError, match="cannot be read"):
        read_request(tmp_path / "none", "toy")


def test_inputs_given_in_python_are_spelled_out_if_they_are_few():
    assert input_options(["texts"], ["a"]) == {"text": ["a"]}
    for lost in ([[1, 2]], [[]], [["a" * 10**6]], [[("a", "b")]]):
        assert input_options(["texts"], lost) == {"texts": ...}
    chats = [{"prompt": "snow", "segments": {"all": (0, 4)}}]
    written = '[{"prompt": "snow", "segments": {"all": [0, 4]}}]'
    assert input_options(["chats"], [chats]) == {"chat": written}
    for lost in ("a" * 10**6, [object()]):
        assert input_options(["chats"], [lost]) == {"chats": ...}


def test_what_differs_of_two_records_is_named_up_to_a_number():
    one = provenance("toy", Identity({"name": "m"}, ["a"], {"x": 1}, seed=3), {"y": "z" * 68})
    assert one["settings"] == {"y": "z" * 68, "x": 1}
    same = [{"folder": Path("a"), "x": 1}, {"x": 1, "folder": "a"}]
    made = {provenance("toy", Identity({}, []), each)["fingerprint"] for each in same}
    assert len(made) == 1, "neither order nor types of values matter"
    assert one["seed"] == 3
    assert subject(one) == "m on 1 text"
    assert subject(one | {"texts": {"count": 0}}) == "m on 0 texts"
    assert differences(one, one) == ""
    other = provenance("toy", Identity({"name": "m"}, ["a"], {"x": 2}), {"y": "z" * 69, "seed": 4})
    long, longer = f'"{"z" * 68}"', f'"{"z" * 69}'
    assert differences(one, other) == (
        f"y is {long} there and {longer} here; x is 1 there and 2 here; seed is 3 there and 4 here"
    )
    more = provenance("other", Identity({"name": "n"}, ["b", "c"]), {"y": "z" * 68, "x": 1})
    assert differences(one, more).endswith("; and 3 more")


def test_a_result_leaves_as_csv_and_json(tmp_path):
    result = toy(layers=(2, 5))

    class Lists(Toy):
        schema: ClassVar = {**Toy.schema, "notes": {"word": pl.List(pl.Int64), "number": pl.Int64}}

        def summary(self):
            return Finding("", {"one": np.int64(1)})

    notes = pl.DataFrame({"word": [[1, 2], []], "number": [1, 2]})
    lists = Lists.of({"table": result.table, "notes": notes}, result.provenance)
    assert [path.name for path in lists.to_csv(tmp_path / "csv")] == ["table.csv", "notes.csv"]
    assert (tmp_path / "csv" / "table.csv").read_text() == "number,square\n2,4.0\n5,25.0\n"
    assert (tmp_path / "csv" / "notes.csv").read_text() == "number\n1\n2\n"
    assert json.loads(lists.to_json())["numbers"] == {"one": 1}
    endless = result.table.with_columns(square=torch.inf)
    written = json.loads(replace(result, table=endless).to_json())
    assert written["numbers"] == {"total": None, "unknown": None}
    written = json.loads(result.to_json())
    assert written["numbers"] == {"total": 29.0, "unknown": None}
    assert written["tables"]["notes"] == [{"word": "odd"}, {"word": "even"}]
    assert (written["study"], written["subject"]) == ("toy", "toy on 2 texts")
    assert written["finding"] == "The squares add up to 29."


def test_studies_that_need_a_folder(tmp_path):
    class Alone(ToyStudy):
        leaves = "it leaves models"

    with pytest.raises(InputError, match="leaves"):
        study_function(Alone, "alone")()
    assert len(study_function(Alone, "alone")(out=tmp_path / "run").table) == 3


def test_a_folder_is_filled_beside_its_place(tmp_path):
    target = tmp_path / "model"
    (target / "sub").mkdir(parents=True)
    (target / "kept.txt").write_text("kept")
    seen = []

    def write(folder):
        seen.append(folder)
        (folder / "sub").mkdir()
        (folder / "sub" / "one.txt").write_text("new")

    write_folder(target, write)
    assert (target / "sub" / "one.txt").read_text() == "new"
    assert (target / "kept.txt").read_text() == "kept"
    assert not seen[0].exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]

    def fails(folder):
        (folder / "two.txt").touch()
        raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_folder(target, fails)
    assert not (target / "two.txt").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_a_manifest_lists_names_once_and_in_order(tmp_path):
    manifest = Manifest(tmp_path)
    assert list(manifest.names) == []
    for name in ("b/2", "a", "b/1", "a", "c"):
        manifest.add(name)
    assert manifest.file.read_text() == "b/2\na\nb/1\nc\n"
    assert manifest.under("b/") == ["b/1", "b/2"]
    # A line that was cut off by a crash counts for nothing.
    manifest.file.write_text("a\nhal")
    assert list(Manifest(tmp_path).names) == ["a"]
