"""docs/recipes.md on bertviz; run by `make test-recipes` in an environment with it."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, ids

bertviz = pytest.importorskip(
    "bertviz", reason="make test-recipes installs bertviz in an environment of its own"
)

# Warnings of the tool itself.
pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = (
    "The keeper of the lighthouse wrote down every ship, although none had stopped there for many years. "
    * 2
)


RECIPE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
NAMES = {}
exec(RECIPE.split("```python\n")[1].split("```")[0], NAMES)
attentions = NAMES["attentions"]


def drawn_by(page):
    """The weights that a page draws: layer, head, query, key."""
    return torch.tensor(json.loads(re.search(r'"attn": (\[.*?\]), "left_text"', page).group(1)))


@pytest.mark.parametrize("measure", ["raw", "effective", "norm"])
@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_the_page_holds_the_measure(bundled, measure, view):
    found = attentions(bundled, TEXT, measure=measure)
    maps = tuple(one.clamp_min(0) for one in found)
    (item,) = bundled.read(TEXT)
    page = getattr(bertviz, view)(maps, list(item.tokens["encoder"]), html_action="return").data
    drawn = drawn_by(page)
    wanted = torch.stack([layer[0] for layer in maps])
    assert drawn.min() >= 0
    assert_close(drawn, wanted, atol=1e-6, rtol=1e-5)


def test_effective_weights_have_to_be_clipped(bundled):
    """Bertviz draws a weight as opacity, which has no negative values."""
    assert min(float(layer.min()) for layer in attentions(bundled, TEXT)) < 0


def test_what_is_certain_is_drawn_beside_the_weights():
    lens, tokens = idl.Lens(build("bert")), ids(30)
    drawn = []
    for measure in ("raw", "certain_lo"):
        maps = attentions(lens, tokens, measure=measure)
        page = bertviz.head_view(maps, [str(one) for one in tokens], html_action="return").data
        drawn.append(drawn_by(page))
    raw, certain = drawn
    assert (certain <= raw + 1e-6).all()
    found = idl.certify(lens, [tokens], layers=1, heads=2, queries=5, tolerance=0).table
    expected = torch.zeros(30).scatter_(0, found["key"].to_torch(), found["lo"].to_torch().float())
    assert_close(certain[1, 2, 5], expected, atol=1e-6, rtol=0)
    assert 0 < certain.sum() < raw.sum()
