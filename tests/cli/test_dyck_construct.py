"""``identilens lab dyck construct`` and ``identilens lab dyck prune`` as a person uses them."""

import polars as pl

import identilens as idl
from helpers.command import failing, identilens


def test_constructions_leave_a_table_a_model_a_report_and_figures(tmp_path):
    out = tmp_path / "built"
    small = ("--depth", 2, "--lengths", "10,30", "--count", 2, "--off-balance", "0,1")
    done = identilens("lab", "dyck", "construct", *small, "--out", out, code=0)
    finding = (
        "every length to 30 at least 100.0 % of the places have exactly the possible next brackets"
    )
    assert finding in done.output
    assert finding in (out / "report.html").read_text(encoding="utf-8")
    table = idl.lab.Constructions.load(out).table
    assert table.filter(pl.col("off_balance") == 0)["support"].min() == 1
    assert table["off_balance"].unique().sort().to_list() == [0, 1]
    assert idl.load(out / "model").model.config.max_depth == 2
    identilens("export", out, "--to", "figures", "--formats", "svg", code=0)
    assert {path.stem for path in (out / "figures").iterdir()} == {"argmax", "support"}
    assert "already contains this run, finished" in failing(
        "lab", "dyck", "construct", *small, "--out", out
    )
