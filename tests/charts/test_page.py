import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import altair as alt
import numpy as np
import polars as pl
import pytest
import torch

from helpers.pages import SCRIPT, Reported, unpacked
from identilens.charts.figures import chart_page
from identilens.charts.notebook import folded_maps
from identilens.charts.packing import packed_matrix
from identilens.charts.page import MOST_ROWS, Section, render_page
from identilens.charts.viewer import fitting
from identilens.runs.result import Finding


class Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.found, self.text = [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def written(tricky_page):
    return render_page(tricky_page)


def held_by(page):
    """The numbers that a page carries for its scripts."""
    return json.loads(
        re.search(
            r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL
        ).group(1),
        parse_constant=lambda name: pytest.fail(f"{name} in the data"),
    )


@pytest.fixture(scope="module")
def data(written):
    return held_by(written)


def test_nothing_of_a_model_or_user_becomes_an_element(written):
    elements = Elements(written)
    assert len([tag for tag, _ in elements.found if tag == "script"]) == 4
    assert SCRIPT not in written
    assert SCRIPT in "".join(elements.text)


def test_the_page_asks_for_nothing_and_may_make_no_code(written):
    elements = Elements(written)
    policy = next(
        one["content"]
        for _, one in elements.found
        if one.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe-eval" not in policy
    assert "http" not in policy
    links = [one[name] for _, one in elements.found for name in ("src", "href") if name in one]
    assert all(link.startswith(("#", "data:,")) for link in links)


def test_a_page_carries_the_licence_of_the_scripts_in_it(written):
    comments = " ".join("".join(re.findall("<!--(.*?)-->", written, re.DOTALL)).split())
    assert "Copyright (c) 2015-2023, University of Washington Interactive Data Lab" in comments
    assert "Redistributions in binary form must reproduce the above copyright notice" in comments
    assert "Copyright 2010-2023 Mike Bostock" in comments
    assert "Copyright (c) 2015-2023" in chart_page(
        alt.Chart(pl.DataFrame({"a": [1]})).mark_point().encode(x="a")
    )


def test_charts_share_their_data_and_have_names(written, data):
    assert set(data["charts"]) == {
        "heads-0", "heads-1", "more-0", "more-1", "more-2", "more-3", "more-4",
    }  # fmt: skip
    assert all("config" not in spec and "title" not in spec for spec in data["charts"].values())
    labels = {
        one["id"]: one["aria-label"]
        for _, one in Elements(written).found
        if one.get("class") == "chart"
    }
    assert labels["heads-0"] == f"Share {SCRIPT}"
    assert (labels["heads-1"], labels["more-1"]) == ("Heads", "More")
    named = re.findall(r'"name": "(data-\w+|empty)"', json.dumps(data["charts"]))
    assert set(named) == set(data["datasets"])


def test_tables_are_cut_at_a_length_that_a_page_can_hold(record):
    section = Section("table", "Table", frame=pl.DataFrame({"a": range(MOST_ROWS + 1)}))
    text = render_page(Reported("T", "S", Finding(""), record, [section]))
    assert text.count('<td class="number">') == MOST_ROWS
    assert f"The first {MOST_ROWS} of {MOST_ROWS + 1} rows" in text


def test_proven_ends_are_rounded_outward_whatever_they_are_called(record):
    names = ["certain_mass_bfloat16", "lo", "hi", "distance_bound"]
    frame = pl.DataFrame(dict.fromkeys(names, 2 / 3))
    section = Section("table", "Table", frame=frame, labels={"lo": "Hi"})
    text = render_page(Reported("T", "S", Finding(""), record, [section]))
    shown = re.findall(r'<td class="number">(.*?)</td>', text)
    assert shown == ["0.6666", "0.6666", "0.6667", "0.6667"]


def test_matrices_come_back_and_differences_are_not_stored(data, maps):
    first = data["viewers"]["maps-maps"]["maps"][0]
    assert set(first["layers"]) == {"raw", "effective"}
    assert first["differences"] == {"null": ["raw", "effective"]}
    for name, matrix in maps[0].layers.items():
        found = np.sqrt(np.abs(unpacked(first["layers"][name], matrix.shape)))
        np.testing.assert_allclose(
            found, matrix.abs().sqrt(), atol=(0.51 / 511) * float(matrix.abs().max()) ** 0.5
        )
    tokens = data["viewers"]["maps-maps"]["tokens"]
    assert len(tokens) == 2
    assert tokens[0][7:10] == ["∅", "\\n", "\\u202egnp"]


def test_missing_and_empty_values_are_packed():
    matrix = torch.tensor([[0.0, float("nan"), 0.25], [1.0, 0.5, 0.0]])
    np.testing.assert_allclose(unpacked(packed_matrix(matrix), (2, 3)), matrix, atol=1e-3)
    np.testing.assert_array_equal(
        unpacked(packed_matrix(torch.zeros(2, 2)), (2, 2)), np.zeros((2, 2))
    )
    assert unpacked(packed_matrix(torch.zeros(0, 3)), (0, 3)).shape == (0, 3)


def test_the_budget_keeps_the_most_interesting_maps_in_order(maps, tricky_page, monkeypatch):
    ranked = [
        replace(one, interest=interest) for one, interest in zip(maps, (1, 3, 2, 9), strict=True)
    ]
    assert fitting(ranked, 2 * maps[0].characters) == ranked[1:3]
    page = replace(tricky_page, parts=[Section("maps", "Maps", maps=ranked)])
    for budget, words in ((2 * maps[0].characters, "2 of 4 maps are"), (0, "cells each, would")):
        monkeypatch.setattr("identilens.charts.page.MAP_BUDGET", budget)
        assert words in render_page(page)


@pytest.mark.parametrize("most", [1, 3])
def test_a_notebook_opens_on_the_most_interesting_map(maps, most):
    folded = folded_maps([replace(one, interest=place == most) for place, one in enumerate(maps)])
    assert "<summary>Maps: open the viewer</summary>" in folded
    (frame,) = [one for tag, one in Elements(folded).found if tag == "iframe"]
    assert held_by(frame["srcdoc"])["maps"]["first"] == most


def test_provenance_and_citation_are_in_the_page(written):
    assert "identilens 0.1.0: audit of models/&lt;script&gt;" in written
    assert "Fingerprint of the run" in written
