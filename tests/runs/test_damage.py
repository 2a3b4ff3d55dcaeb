"""Damaged and hostile files in a run's folder: named, or harmless, whatever they contain."""

import io
import json
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import identilens as idl
from helpers.killing import contents, interrupted, same
from helpers.toy import Toy, ToyStudy, toy
from helpers.zoo import build
from identilens.errors import OutputFolderError
from identilens.runs.reading import parquet_table


def test_a_damaged_part_runs_again(tmp_path):
    interrupted(tmp_path / "run", part=3)
    part = tmp_path / "run" / "parts" / "000001.safetensors"
    part.write_bytes(part.read_bytes()[:-20])
    ToyStudy.runs.clear()
    same(toy(layers="1-4", out=tmp_path / "run", resume=True), toy(layers="1-4"))
    assert ToyStudy.runs[:2] == [1, 3]


def test_a_run_without_its_provenance_is_left_alone(tmp_path):
    toy(out=tmp_path / "run")
    (tmp_path / "run" / "provenance.json").unlink()
    left = contents(tmp_path / "run")
    for options in ({"resume": True}, {}):
        with pytest.raises(
            OutputFolderError,
            match=r"provenance.json is missing or no file, but manifest.txt lists other files",
        ):
            toy(out=tmp_path / "run", **options)
    assert contents(tmp_path / "run") == left
    same(toy(out=tmp_path / "run", overwrite=True), toy())


@pytest.mark.parametrize(
    "change",
    [
        {"texts": {}}, {"texts": {"count": "3", "sha256": []}}, {"texts": {"count": 1, "sha256": [5]}},
        {"texts": {"count": -1, "sha256": []}}, {"libraries": None}, {"libraries": {"torch": 2}},
        {"later_versions": 7}, {"later_versions": [7]}, {"model": {"sha256": 5}}, {"model": {"digest": 5}},
        {"model": {"name": ["a"]}}, {"command": [5]}, {"command": "identilens"},
    ],
)  # fmt: skip
def test_a_record_of_another_form_is_named(tmp_path, change):
    toy(out=tmp_path / "run")
    file = tmp_path / "run" / "provenance.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(OutputFolderError, match=r"provenance.json was not written by identilens"):
        Toy.load(tmp_path / "run")


@pytest.mark.parametrize(("value", "count"), [(0.0, 20_000_000), (None, 20_000_000)])
def test_a_table_that_expands_without_bound_is_refused(tmp_path, value, count):
    toy(out=tmp_path / "run")
    file = tmp_path / "run" / "table.parquet"
    rows = pl.repeat(value, count, dtype=pl.Float64, eager=True)
    pl.DataFrame({"number": rows, "square": rows}).write_parquet(file)
    assert file.stat().st_size < 500_000
    with pytest.raises(
        OutputFolderError, match=r"table.parquet cannot be read: it takes .* bytes of memory"
    ):
        Toy.load(tmp_path / "run")


@pytest.fixture(scope="module")
def audited(bundled, tmp_path_factory):
    folder = tmp_path_factory.mktemp("audited") / "run"
    idl.audit(
        bundled,
        ["The ferry left the harbour before dawn."],
        layers=(0, 3),
        matrices=True,
        out=folder,
    )
    return folder


@pytest.mark.parametrize(("size", "rows"), [(20 * 2**20, 1), (2**20, 24)])
def test_texts_that_fill_the_memory_of_a_report_are_refused(audited, tmp_path, size, rows):
    """A report has each text several times, in charts and tables: files of 12 kB made one take more than 900 MB."""
    shutil.copytree(audited, tmp_path / "run")
    file = tmp_path / "run" / "table.parquet"
    table = pl.read_parquet(file).head(rows).with_columns(sink_token=pl.lit("a" * size))
    table.write_parquet(file, statistics=False)
    assert file.stat().st_size < 30_000
    message = r"table.parquet cannot be read: its long texts have 2\d,\d{3},\d{3} bytes"
    for use in (idl.load_result, idl.write_report):
        with pytest.raises(OutputFolderError, match=message):
            use(tmp_path / "run")


def test_texts_in_lists_count_each_time():
    def content(words):
        stream = io.BytesIO()
        pl.DataFrame({"words": [words]}).write_parquet(stream)
        return stream.getvalue()

    assert parquet_table([content(["a" * 100] * 1000)] * 2)["words"].list.len().to_list() == [
        1000,
        1000,
    ]
    with pytest.raises(ValueError, match="its long texts have 10,000,000 bytes, and those of a"):
        parquet_table([content(["a" * 1000] * 10_000)])


@pytest.mark.parametrize(("layers", "heads"), [(1, 90_000), (90_000, 1), (300, 300)])
def test_a_table_with_more_heads_than_any_model_is_refused(audited, tmp_path, layers, heads):
    """Charts show every head: a file of 500 kB with 440,000 of them made a report take 1.8 GB."""
    shutil.copytree(audited, tmp_path / "run")
    file = tmp_path / "run" / "table.parquet"
    row = pl.read_parquet(file).head(1).drop("layer", "head")
    names = [pl.DataFrame({name: range(count)}, schema={name: pl.Int32})
             for name, count in (("layer", layers), ("head", heads))]  # fmt: skip
    forged = names[0].join(names[1], how="cross").join(row, how="cross")
    columns = pl.read_parquet_schema(file)
    forged = forged.select(pl.col(name).cast(kind) for name, kind in columns.items())
    forged.write_parquet(file)
    message = r"table.parquet cannot be read: it names 90,000 heads; no run has so many"
    with pytest.raises(OutputFolderError, match=message):
        idl.write_report(tmp_path / "run")
    forged.head(20_000).write_parquet(file)
    assert len(idl.load_result(tmp_path / "run").table) == 20_000


def test_a_table_with_more_explanations_than_any_run_has_is_refused(tmp_path):
    idl.faithfulness(
        idl.Lens(build("bert")), [list(range(3, 9))], maps=1, rows=1, out=tmp_path / "run"
    )
    file = tmp_path / "run" / "table.parquet"
    row = pl.read_parquet(file).head(1).drop("explanation")
    names = pl.DataFrame({"explanation": map(str, range(90_000))})
    names.join(row, how="cross").select(list(pl.read_parquet_schema(file))).write_parquet(file)
    with pytest.raises(OutputFolderError, match="it names 90,000 values of explanation"):
        idl.load_result(tmp_path / "run")


def test_rows_that_name_the_same_thing_twice_are_refused(tmp_path):
    """A chart of W for every row: 440,000 rows of one head took 5 GB."""
    texts = [list(range(3 + one, 9 + one)) for one in range(4)]
    idl.structure(
        idl.Lens(build("bert")), texts, length=6, clusters=2, perturbed=0, out=tmp_path / "run"
    )
    file = tmp_path / "run" / "table.parquet"
    table = pl.read_parquet(file)
    pl.concat([table, table.head(1)]).write_parquet(file)
    with pytest.raises(
        OutputFolderError, match=r"table.parquet .* several rows have the same kind, layer, head"
    ):
        idl.load_result(tmp_path / "run")


@pytest.mark.parametrize(
    "value", ["no rows", None, float("inf"), float("nan"), 1e308, -1, 2**31 - 1]
)
def test_a_table_with_values_of_no_run_is_named(audited, tmp_path, value):
    shutil.copytree(audited, tmp_path / "run")
    for file in (tmp_path / "run").glob("*.parquet"):
        table = pl.read_parquet(file)
        kinds = (pl.Float64, pl.Int64, pl.Int32, pl.String) if value is None else (pl.Float64,)
        kinds = (pl.Int64, pl.Int32) if isinstance(value, int) else kinds
        forged = table.with_columns(pl.lit(value).cast(kind).alias(name) for name, kind in table.schema.items()
                                    if kind in kinds and value != "no rows")  # fmt: skip
        (table.head(0) if value == "no rows" else forged).write_parquet(file)
    result = idl.load_result(tmp_path / "run")
    views = (result.summary, result.charts, result.sections, result.token_lines, result.by_head)
    shown = (result.show, result._repr_html_, lambda: idl.write_report(tmp_path / "run"))
    for use in (*views, *shown):
        with suppress(OutputFolderError):
            use()


def test_sizes_of_a_structure_are_those_of_its_maps_not_of_its_table(tmp_path):
    """A table can say anything; names of 2**62 positions would fill the memory."""
    lens = idl.Lens(build("bert"))
    texts = [list(range(start, start + 6)) for start in range(3, 9)]
    options = {"length": 6, "clusters": 2, "compared_pairs": 0, "perturbed": 0}
    idl.structure(lens, texts, **options, out=tmp_path / "run")
    file = tmp_path / "run" / "table.parquet"
    pl.read_parquet(file).with_columns(length=pl.lit(2**62)).write_parquet(file)
    result = idl.Structure.load(tmp_path / "run")
    assert result.visibility_by_position()["position"].max() == 5
    assert max(len(one.queries) for part in result.sections() for one in part.maps) == 6


def test_errors_on_what_was_read_name_the_folder_and_those_in_memory_stay(tmp_path, monkeypatch):
    made, stored = toy(), toy(out=tmp_path / "run")
    monkeypatch.setattr(Toy, "summary", lambda _: [][0])
    for use in (stored.show, stored._repr_html_, lambda: stored.to_html(tmp_path / "report.html")):
        with pytest.raises(
            OutputFolderError,
            match="run cannot be shown: its tables have values .*IndexError: list",
        ):
            use()
    monkeypatch.setattr(Toy, "charts", lambda _: [][0])
    with pytest.raises(OutputFolderError, match="IndexError"):
        stored.save_figures(tmp_path)
    with pytest.raises(IndexError):
        made.show()


@pytest.mark.parametrize("content", ["[1]", '{"encoder": null}', '{"encoder": [1]}'])
def test_tokens_of_another_form_are_named(tmp_path, content):
    toy(out=tmp_path / "run")
    file = tmp_path / "run" / "matrices" / "text0.json"
    file.write_text(content)
    with pytest.raises(
        OutputFolderError, match=r"text0.json cannot be read: expected lists of tokens by sequence"
    ):
        Toy.load(tmp_path / "run")


@pytest.mark.parametrize(
    "name", ["table.parquet", "matrices/text0.json", "matrices/text0.safetensors", "manifest.txt"]
)
def test_a_pipe_in_place_of_a_file_is_named_and_not_waited_for(tmp_path, name):
    toy(out=tmp_path / "run")
    (tmp_path / "run" / name).unlink()
    os.mkfifo(tmp_path / "run" / name)
    with pytest.raises(OutputFolderError, match=name):
        Toy.load(tmp_path / "run")


def damaged(content, kind, draw):
    """The content of a file after an accident."""
    if kind == "flip" and content:
        place = draw(st.integers(0, len(content) - 1))
        return (
            content[:place]
            + bytes([content[place] ^ draw(st.integers(1, 255))])
            + content[place + 1 :]
        )
    if kind == "cut":
        return content[: draw(st.integers(0, max(0, len(content) - 1)))]
    return {"other": b"PAR1 and nothing else", "longer": content + b"{}"}.get(kind, b"")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished and an interrupted run."""
    place = tmp_path_factory.mktemp("runs")
    toy(layers="1-4", out=place / "finished")
    interrupted(place / "interrupted", part=3)
    return place


@pytest.mark.usefixtures("unchecked_shapes")
@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_random_damage_is_told_or_does_no_harm(runs, data):
    state = data.draw(st.sampled_from(["finished", "interrupted"]))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        shutil.copytree(runs / state, folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        file = data.draw(st.sampled_from(files))
        kind = data.draw(st.sampled_from(["cut", "flip", "empty", "other", "longer", "gone"]))
        if kind == "gone":
            file.unlink()
        else:
            file.write_bytes(damaged(file.read_bytes(), kind, data.draw))
        message = ""
        try:
            result = (
                Toy.load(folder)
                if state == "finished"
                else toy(layers="1-4", out=folder, resume=True)
            )
            # A changed byte inside a file of the right form shows only in its numbers.
            if kind != "flip":
                same(result, Toy.load(runs / "finished"))
        except OutputFolderError as error:
            message = str(error)
        assert not message or str(folder) in message


@pytest.mark.parametrize("column", [pl.col("number") + 0.5, pl.col("number").cast(pl.String)])
def test_a_table_of_other_types_is_damaged(tmp_path, column):
    toy(layers="1-3", out=tmp_path / "run")
    file = tmp_path / "run" / "table.parquet"
    pl.read_parquet(file).with_columns(column.alias("number")).write_parquet(file)
    with pytest.raises(
        OutputFolderError, match=r"table\.parquet cannot be read: expected columns of"
    ):
        Toy.load(tmp_path / "run")
