import base64
import json
import re

import numpy as np
import polars as pl
import pytest
import torch

from helpers.structures import SCRIPT, structure_of
from identilens.errors import InputError, OutputFolderError
from identilens.report import save_figures, save_structure_figures, write_report, write_structure_report


def data_of(path):
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL).group(1))


def test_the_page_holds_the_numbers_of_the_result(structure_result, tmp_path):
    path = structure_result.to_html(tmp_path / "report.html")
    data = data_of(path)
    table = structure_result.table
    assert data["length"] == 12
    assert data["threshold"] == pytest.approx(structure_result.threshold)
    assert data["heads"]["pattern"] == table["pattern"].to_list()
    assert data["heads"]["score"] == pytest.approx(table["score"].to_list(), abs=1e-3)
    assert data["growth"]["dim_r"] == structure_result.growth["dim_r"].to_list()
    assert len(data["maps"]) == len(table)
    last = data["maps"][-1]
    page = path.read_text(encoding="utf-8")
    text = re.search(rf'id="{last["id"]}">(.*?)</script>', page).group(1)
    parts = np.frombuffer(base64.b64decode(text), "<f2").reshape(4, 12, 12)
    mean = structure_result.mean_weights(last["layer"], last["head"])
    np.testing.assert_allclose(parts[0], mean, rtol=1e-3, atol=1e-6)
    effective = structure_result.mean_weights(last["layer"], last["head"], name="all_effective")
    np.testing.assert_allclose(parts[3], effective, rtol=1e-3, atol=1e-6)
    assert "http://" not in page.replace("http://www.w3.org", "")[:4000]


def test_hostile_tokens_are_text(tmp_path):
    page = write_structure_report(structure_of(tokens=SCRIPT), tmp_path / "report.html").read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page


def test_heads_without_room_are_left_out_and_told(structure_result, tmp_path):
    one_layer = 4 * (4 * 12 * 12 * 2 * 4 // 3 + 4)
    path = write_structure_report(structure_result, tmp_path / "report.html", budget=one_layer)
    assert {one["layer"] for one in data_of(path)["maps"]} == {0}
    assert "holds the maps of 4 of 8 heads" in path.read_text(encoding="utf-8")
    none = write_structure_report(structure_result, tmp_path / "none.html", budget=1)
    assert data_of(none)["maps"] == []


def test_without_pairs_and_perturbations(tmp_path):
    page = structure_of(pairs=0, perturbed=0).to_html(tmp_path / "report.html").read_text(encoding="utf-8")
    assert "No weights were perturbed in this run" in page


def test_the_finding_says_what_was_found(structure_result):
    sentences = structure_result.summary().splitlines()
    assert sentences[0].startswith("9 texts of 12 tokens: R is the whole space in 8 of 8 heads, after 2 texts")
    assert "Structures W of 3 representatives at l = 0.1667" in sentences[1]
    assert any("Naim & Asher's projection has negative entries on" in line for line in sentences)
    assert any(line.startswith("Weights that are equivalent under one text") for line in sentences)
    assert sentences[-1].startswith("Rank correlation of norms")


def test_figures_from_the_folder(structure_result, tmp_path):
    structure_result.save(tmp_path / "run")
    assert write_report(tmp_path / "run").is_file()
    paths = save_figures(tmp_path / "run", formats=("png",))
    assert {path.stem for path in paths} == {
        "structures_encoder_raw", "structures_encoder_effective", "subspace", "patterns", "stability", "classes",
        "norms",
    }  # fmt: skip
    again = save_structure_figures(structure_result, tmp_path / "again", ("png",))
    for one, other in zip(paths, again, strict=True):
        assert one.read_bytes() == other.read_bytes()
    with pytest.raises(InputError, match="formats must be"):
        save_structure_figures(structure_result, tmp_path / "x", ("gif",))
    with pytest.raises(OutputFolderError, match="could not write"):
        write_structure_report(structure_result, tmp_path / "run" / "report.html" / "below.html")


def test_show_prints_heads(structure_result, capsys):
    structure_result.show()
    printed = capsys.readouterr().out
    assert "Heads" in printed
    assert str(structure_result.table["pattern"][0])[:4] in printed
    assert "<table" in structure_result._repr_html_()


def test_the_maps_follow_the_threshold(structure_result):
    """What the page computes by its slider, in the numbers of Python."""
    mean = structure_result.mean_weights(0, 0)
    cut = torch.where(mean >= 0.2, mean, 0.0)
    assert float(cut.sum()) < float(mean.sum())
    assert structure_result.stability.filter(pl.col("clusters") == 2)["to_all"].min() > 0
