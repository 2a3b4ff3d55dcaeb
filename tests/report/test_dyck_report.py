"""Report and figures of trained Dyck transformers."""

import json
import re

import pytest

from helpers.dycks import MEASURING, SETTINGS
from identilens.report import save_dyck_figures, save_figures, write_report
from identilens.studies.dyck_train.study import train_dyck


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("dyck") / "run"
    train_dyck(SETTINGS, [0, 1], measuring=MEASURING, out=out)
    return out


def test_the_report_holds_every_pattern_and_escapes_names(folder):
    text = write_report(folder).read_text(encoding="utf-8")
    assert "<b>one-hot</b>" not in text
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])
    assert [one["seeds"] for one in data["gallery"]["settings"]] == [[0, 1], [0, 1]]
    assert len(re.findall(r'id="patterns-\d+-\d+"', text)) == 4
    assert len(data["heads"]) == 2 * 5
    assert len(data["violations"]) == 2
    assert 'id="balance"' in text


def test_figures_are_drawn_and_equal_on_every_run(folder, tmp_path):
    first = save_figures(folder, tmp_path / "one", ("svg",))
    assert {path.stem for path in first} == {
        "gallery_behind_b_one_hot_b", "gallery_2_layers_2_heads", "variation", "generalisation", "looks_and_use",
        "violation",
    }  # fmt: skip
    again = save_figures(folder, tmp_path / "two", ("svg",))
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, again, strict=True))
    assert callable(save_dyck_figures)
