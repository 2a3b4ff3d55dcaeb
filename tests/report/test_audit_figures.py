import re
import warnings
from xml.etree import ElementTree

import matplotlib
import numpy as np
import polars as pl
import pytest
from PIL import Image

from identilens.errors import InputError
from identilens.report import save_audit_figures
from identilens.report.audit_figures import _figures
from identilens.report.paper import drawable, paper_style

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def small(make_audit, plan, tokens):
    return make_audit([[plan(tokens(n), tokens(n))] for n in (3, 7, 12)], keep=[0, 2])


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def test_every_figure_in_every_format_under_its_name(small, tmp_path):
    paths = save_audit_figures(small, tmp_path / "figures")
    telling = small.table.filter(pl.col("text") == 2).sort("null_share")[-1]
    stems = {path.stem for path in paths}
    assert stems >= {
        "null_share_map",
        "correlation_map",
        "correlation_by_length",
        "token_types_raw_effective",
        "attention_to_type_CLS",
        "attention_to_type_other",
        f"maps_text2_layer{telling['layer'][0]}_head{telling['head'][0]}",
    }
    assert len(stems) == 8
    assert {path.suffix for path in paths} == {".png", ".svg", ".pdf"}
    assert len(paths) == 24
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert np.asarray(image.convert("L")).std() > 5, "not a blank sheet"
        elif path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag.endswith("svg")
        else:
            assert path.read_bytes().startswith(b"%PDF")


def test_equal_audits_give_equal_files(small, tmp_path):
    one = small.__class__(small.table, small.token_types.clear(), small.provenance)
    first = save_audit_figures(one, tmp_path / "first", ["svg", "pdf"])
    second = save_audit_figures(one, tmp_path / "second", ["svg", "pdf"])
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_what_is_drawn_are_the_numbers_of_the_audit(small):
    with paper_style():
        sheets = dict(_figures(small))
    image = sheets["null_share_map"].axes[0].images[0].get_array()
    means = small.by_head()["null_share"].to_numpy().reshape(2, 3)
    np.testing.assert_allclose(image, means)
    points = sheets["correlation_by_length"].axes[0].collections[0].get_offsets()
    assert sorted(points[:, 1]) == pytest.approx(sorted(small.table["pearson"]))
    assert "$d_v$ = 4" in texts(sheets["correlation_by_length"])
    raw, effective = sheets["token_types_raw_effective"].axes[:2]
    assert raw.get_ylim() == effective.get_ylim()
    received = small.received().filter(pl.col("key_type") == "[CLS]").group_by("layer").agg(pl.col("effective").mean())
    line = next(line for line in effective.lines if len(line.get_xdata()) == 2 and line.get_marker() == "o")
    np.testing.assert_allclose(line.get_ydata(), received.sort("layer")["effective"].to_numpy())
    name = next(name for name in sheets if name.startswith("maps_text2"))
    layer, head = map(int, re.findall(r"\d+", name)[1:])
    panels = sheets[name].axes[:3]
    for axes, part in zip(panels, ("raw", "effective", "null"), strict=True):
        expected = small.matrices[f"text2.layer{layer}.head{head}.encoder.{part}"]
        np.testing.assert_allclose(axes.images[0].get_array(), expected, atol=1e-6)
    assert len({axes.images[0].get_clim() for axes in panels}) == 1, "one scale for the three maps"


def test_odd_tokens_are_drawn_as_they_are(mixed_audit):
    with warnings.catch_warnings(), paper_style():
        warnings.simplefilter("error")
        sheets = dict(_figures(mixed_audit))
        for name, figure in sheets.items():
            if name.startswith(("maps_text0", "token_types")):
                figure.canvas.draw()
    assert {name.rsplit("_", 1)[1] for name in sheets} == {"encoder", "decoder", "cross"}
    labels = [label for name, figure in sheets.items() if name.startswith("maps_text0") for label in texts(figure)]
    assert "$x$" in labels
    assert any(label.startswith("<scrip") for label in labels)
    legend = texts(sheets["token_types_raw_effective_encoder"])
    assert SCRIPT in legend
    assert any(label.strip("\u200a") == "_odd" for label in legend)


def test_characters_without_a_glyph_are_spelled_out():
    assert drawable("abc ∅␣…") == "abc ∅␣…"
    assert drawable("\U0010fffd") == "\\U0010fffd"


def test_nothing_global_changes(small, tmp_path):
    before = dict(matplotlib.rcParams)
    save_audit_figures(small, tmp_path, ("png",))
    assert dict(matplotlib.rcParams) == before


def test_a_text_of_one_token(make_audit, plan, tmp_path):
    audit = make_audit([[plan(["x"], ["x"], layers=1, heads=1)]], keep=[0])
    assert len(save_audit_figures(audit, tmp_path, ["png"])) == 7


@pytest.mark.parametrize("formats", [("gif",), (), ("png", "jpg")])
def test_unknown_formats_are_refused(small, tmp_path, formats):
    with pytest.raises(InputError, match=r"formats must be a list with any of png, svg, pdf; got"):
        save_audit_figures(small, tmp_path, formats)
    assert not list(tmp_path.iterdir())
