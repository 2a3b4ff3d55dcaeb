"""The page of reproductions: made from the stored rows, complete, and with commands that exist."""

import re
from pathlib import Path
from runpy import run_path

import pytest

from identilens.reproduce.registry import REPRODUCTIONS

ROOT = Path(__file__).parents[1]
TOOL = run_path(str(ROOT / "tools" / "tables.py"))
ROWS = TOOL["stored_rows"]()
COUNTS = {
    "Brunner et al. 2020": ("Figure", 43), "Bhardwaj et al. 2021": ("Figure", 6), "structure2025": ("Figure", 2),
    "Wen et al. 2023": ("Figure", 10),
}  # fmt: skip


def numbers(item):
    """The figures that an item names: "Figures 19 to 25", "Figures 1b and 1c"."""
    found = [int(number) for number in re.findall(r"\d+", item)]
    return range(found[0], found[-1] + 1) if " to " in item else found


def test_the_page_is_made_from_the_stored_rows():
    page = (ROOT / "docs" / "reproductions.md").read_text(encoding="utf-8")
    assert page == TOOL["figures_page"](), "run: make docs"


@pytest.mark.parametrize("paper", COUNTS)
def test_every_figure_has_a_row(paper):
    word, count = COUNTS[paper]
    items = [row["item"] for row in ROWS if row["paper"] == paper and row["item"].startswith(word)]
    assert {number for item in items for number in numbers(item)} == set(range(1, count + 1))


def test_the_tables_have_rows():
    tables = [row["item"] for row in ROWS if row["item"].startswith("Table 1")]
    named = " ".join(tables).lower().replace(" news", "_news")
    assert all(
        task in named
        for task in ("trec", "sst", "ag_news", "dbpedia", "snli", "imdb", "yelp", "sogou")
    )
    assert "Table 1" in tables  # Wen et al.


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['paper']} {row['item']}")
def test_a_row_says_what_it_rests_on(row):
    assert row["verdict"] in TOOL["VERDICTS"]
    assert row["ours"] or row["verdict"] == "illustration"
    if row["verdict"] in ("agrees", "partly", "differs"):
        assert re.search(r"\d", row["ours"]), "a verdict needs a measured number"
    if row["page"]:
        assert (ROOT / "docs" / row["page"]).exists()
    if row["command"]:
        assert row["command"].split()[:2] == ["identilens", "reproduce"]
        assert row["command"].split()[2] in REPRODUCTIONS


def test_every_reproduction_is_on_the_page():
    assert set(REPRODUCTIONS) <= {row["command"].split()[2] for row in ROWS if row["command"]}
