import matplotlib
import numpy as np
import pytest
from PIL import Image

from helpers.mixings import random_mixing
from identilens.errors import InputError
from identilens.report import save_mixing_figures
from identilens.report.mixing_figures import _figures
from identilens.report.paper import paper_style


def drawn(result, track=None):
    with paper_style():
        return dict(_figures(result, track))


def test_every_figure_under_its_name(tagged_mixing, tmp_path):
    paths = save_mixing_figures(tagged_mixing, tmp_path, ["png", "svg"])
    stems = {path.stem for path in paths}
    assert stems > {
        "own_contribution",
        "context",
        "class_token",
        "rollout",
        "part_of_speech_layer1",
        "part_of_speech_layer2",
        "part_of_speech_layer3",
        "token_text0_0_CLS",
    }
    assert len(stems) == 10
    for path in paths:
        if path.suffix == ".png":
            with Image.open(path) as image:
                assert np.asarray(image.convert("L")).std() > 5, "not a blank sheet"
    with pytest.raises(InputError, match=r"formats must be a list with any of png, svg, pdf"):
        save_mixing_figures(tagged_mixing, tmp_path, ["gif"])


def test_equal_results_give_equal_files(tagged_mixing, tmp_path):
    first, second = (save_mixing_figures(tagged_mixing, tmp_path / name, ["svg"]) for name in ("one", "two"))
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_boxes_and_bars_are_the_numbers(tagged_mixing):
    figure = drawn(tagged_mixing)["own_contribution"]
    left, right = figure.axes
    layers = tagged_mixing.by_layer()
    medians = [line.get_ydata()[0] for line in left.lines if line.get_linewidth() == 1.6]
    assert medians == pytest.approx(layers["median_own"].to_list())
    assert [bar.get_height() for bar in right.patches] == pytest.approx(layers["not_largest"].to_list())


def test_the_tracked_token_is_drawn(tagged_mixing):
    figures = drawn(tagged_mixing, "word20")
    (name,) = [name for name in figures if name.startswith("token")]
    assert name == "token_text1_21_word20"
    axes = figures[name].axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array(), tagged_mixing.array(1)[:, 21])
    assert len(axes.get_xticklabels()) == 24


def test_kinds_and_tricky_tokens(mixing_result):
    figures = drawn(mixing_result)
    assert {"own_contribution_encoder", "own_contribution_decoder", "context_decoder", "class_token"} <= set(figures)
    words = [text.get_text() for figure in figures.values() for text in figure.findobj(matplotlib.text.Text)]
    assert "$x$" in words


def test_one_token_alone():
    figures = drawn(random_mixing([["x"]])[1])
    assert set(figures) == {"own_contribution", "rollout", "token_text0_0_x"}
