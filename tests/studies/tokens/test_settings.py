"""Which cells an experiment is made of, and which options it refuses."""

import pytest

from identilens.errors import SettingError
from identilens.studies.tokens.settings import TokenSettings
from identilens.studies.tokens.study import Cell, cells

pytestmark = pytest.mark.usefixtures("unchecked_shapes")


def chosen(**options):
    return TokenSettings.of(None, options)


def test_cells_of_each_experiment():
    assert cells(chosen(), 3, "linear") == [Cell(1, (1,)), Cell(2, (2,)), Cell(3, (3,))]
    across = chosen(experiment="across-layers", layers=(1, 3))
    assert cells(across, 3, "linear") == [Cell(1, (1, 2, 3)), Cell(3, (1, 2, 3))]
    assert cells(across, 3, "naive") == [Cell(1, (1,)), Cell(3, (3,))]
    down = chosen(experiment="layer-to-layer")
    assert cells(down, 2, "mlp") == [Cell(1, (1,), target=0), Cell(2, (2,), target=1)]
    near = chosen(experiment="neighbours", offsets=(-1, 2))
    assert cells(near, 1, "linear") == [Cell(1, (1,), offset=-1), Cell(1, (1,), offset=2)]
    share = chosen(experiment="data-share", shares=(0.5, 1.0))
    # The paper takes layer 11 of 12.
    assert cells(share, 12, "mlp") == [Cell(11, (11,), share=0.5), Cell(11, (11,))]
    assert cells(share, 12, "naive") == [Cell(11, (11,))]
    assert cells(share, 1, "naive") == [Cell(1, (1,))]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"probe": "linear"}, "experiment"), ({"probes": "linear,forest"}, "probes"),
        ({"probes": ()}, "probes"), ({"layers": ()}, "layers"), ({"distances": ("manhattan",)}, "distances"),
        ({"experiment": "layers"}, "across-layers"), ({"folds": 0}, "folds"),
        ({"max_epochs": 0}, "max_epochs"), ({"folds": 3, "mlp_folds": 4}, "mlp_folds"),
        ({"learning_rates": (0.1, -1.0)}, "learning_rates"),
        ({"learning_rates": float("inf")}, "learning_rates"), ({"learning_rates": ()}, "learning_rates"),
        ({"experiment": "neighbours", "offsets": "-1,0,1"}, "experiment"), ({"shares": (0.5, 1.5)}, "shares"),
        ({"shares": 0}, "shares"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options, expected):
    with pytest.raises(SettingError, match=expected):
        chosen(**options)


def test_what_does_not_change_the_numbers_is_not_recorded():
    recorded = chosen(states="somewhere").recorded()
    assert recorded == TokenSettings().recorded()
    assert "states" not in recorded
