from pathlib import Path

import polars as pl
import pytest

from helpers.pages import heads
from identilens.charts import choose, heat, lines, save_charts
from identilens.errors import InputError, OutputFolderError

FRAME = pl.DataFrame({"layer": [0, 1, 2], "rate": [0.5, 0.7, 0.6]})


def test_every_format_is_written_and_equal_charts_give_equal_files(tmp_path):
    charts = {"rates": lines(FRAME, "layer", "rate")}
    first, second = (save_charts(charts, tmp_path / name) for name in ("a", "b"))
    assert [path.name for path in first] == ["rates.png", "rates.svg", "rates.pdf"]
    starts = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF"}
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        assert one.read_bytes().startswith(starts[one.suffix])
    assert not list(tmp_path.rglob(".*"))


def test_a_chart_that_offers_a_choice_is_written_once_for_each(tmp_path):
    chart = choose(
        heat(heads(), "head", "layer", "share"),
        "kind",
        "Attention",
        {"encoder": "Encoder", "decoder": "De."},
    )
    paths = save_charts({"share": chart}, tmp_path, ["svg"])
    assert [path.name for path in paths] == ["share_Encoder.svg", "share_De.svg"]
    first, second = (path.read_text() for path in paths)
    assert first.count(">0.64<") == 1
    assert ">Attention Encoder<" in first
    assert ">Attention De.<" in second
    assert first != second
    titled = chart.properties(title="Shares")
    [first, _] = save_charts({"titled": titled}, tmp_path, ["svg"])
    assert all(f">{words}<" in first.read_text() for words in ("Shares", "Attention Encoder"))


@pytest.mark.parametrize("formats", [["png", "gif"], [], "png"])
def test_wrong_formats_are_refused_before_anything_is_written(tmp_path, formats):
    with pytest.raises(InputError, match="any of png, svg, pdf"):
        save_charts({"rates": lines(FRAME, "layer", "rate")}, tmp_path / "new", formats)
    assert not (tmp_path / "new").exists()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, monkeypatch):
    path = tmp_path / "rates.svg"
    path.write_text("old")

    def full(target, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputFolderError, match="No space left"):
        save_charts({"rates": lines(FRAME, "layer", "rate")}, tmp_path, ["svg"])
    assert path.read_text() == "old"
    assert [one.name for one in tmp_path.iterdir()] == ["rates.svg"]
