"""A browser, and a page with everything that a page must cope with."""

import polars as pl
import pytest

from helpers.pages import SCRIPT, TOKENS, Reported, heads, token_map
from identilens.charts.cells import heat
from identilens.charts.cells import token_map as token_sheet
from identilens.charts.kit import bars, choose, lines, rule, scatter
from identilens.charts.page import Section
from identilens.runs.result import Finding


@pytest.fixture(scope="session")
def maps():
    """Maps of two texts; the second has a head less."""
    places = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    return [
        token_map(*place, TOKENS if place[0] == 0 else [f"word{at}" for at in range(90)])
        for place in places
    ]


@pytest.fixture(scope="session")
def record():
    return {
        "analysis": "audit",
        "fingerprint": "f0" * 32,
        "model": {"name": f"models/{SCRIPT}", "digest": "ab" * 32},
        "settings": {"layers": None, "batch_size": 8},
        "seed": 0,
        "libraries": {"identilens": "0.1.0"},
        "python": "3.11",
        "platform": "somewhere",
        "processor": f"{SCRIPT} \udcff",
        "texts": {"count": 2},
    }


@pytest.fixture(scope="session")
def tricky_page(maps, record):
    frame = heads()
    known = pl.when(pl.col("share") > 0.05).then("share").otherwise(float("nan"))
    rates = frame.with_columns(pl.Series("type", TOKENS * 2), **{"share.of[all]": known})
    shares = heat(frame, "head", "layer", "share", domain=(0, 1), title=f"Share {SCRIPT}")
    points = rule(scatter(frame, "head", "share", "layer", title="Points"), x=2)
    charts = {
        "shares": choose(shares, frame, "kind", "Attention"),
        "signed": heat(frame.head(12), "head", "layer", "signed"),
        "points": choose(points, frame, "kind", "Attention"),
        "print": token_sheet(maps[0].layers, TOKENS, TOKENS, "For print"),
        "types": bars(rates, "share.of[all]", "type", "kind"),
    }
    line = lines(rates, "layer", "share.of[all]", "type", title="Lines")
    empty = scatter(frame.head(0), "head", "share", title="Empty")
    wide = pl.DataFrame(
        {f"a_column_{at}": [0.5, float("nan")] for at in range(20)} | {"token": [SCRIPT, "\u202e"]}
    )
    return Reported(
        "Audit",
        f"models/{SCRIPT}",
        Finding(f"Finding with {SCRIPT}.", {}, [("37 %", "share")]),
        record,
        [
            Section(
                "heads",
                "Heads",
                ["A paragraph & more."],
                [charts["shares"], charts["signed"]],
                wide,
                note=f"A note {SCRIPT}",
            ),
            Section(
                "more",
                "More",
                charts=[charts["points"], charts["types"], line, charts["print"], empty],
            ),
            Section("maps", "Maps", maps=maps),
        ],
    )
