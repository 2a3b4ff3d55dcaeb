"""docs/recipes.md on bertviz; run by `make test-recipes` in an environment with it."""

import json
import re

import pytest
import torch

import identilens as idl

bertviz = pytest.importorskip(
    "bertviz", reason="make test-recipes installs bertviz in an environment of its own"
)

# Warnings of the tool itself.
pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = (
    "The keeper of the lighthouse wrote down every ship, although none had stopped there for many years. "
    * 2
)


@pytest.mark.parametrize("measure", ["raw", "effective", "norm"])
@pytest.mark.parametrize("view", ["head_view", "model_view"])
def test_the_page_holds_the_measure(bundled, measure, view):
    maps = idl.attentions(bundled, TEXT, measure=measure, signed="clip")
    (item,) = bundled.read(TEXT)
    page = getattr(bertviz, view)(maps, list(item.tokens["encoder"]), html_action="return").data
    held = json.loads(re.search(r'"attn": (\[.*?\]), "left_text"', page).group(1))
    drawn = torch.tensor(held)
    wanted = torch.stack([layer[0] for layer in maps])
    assert drawn.min() >= 0
    torch.testing.assert_close(drawn, wanted, atol=1e-6, rtol=1e-5)


def test_negative_weights_have_to_be_clipped_or_made_positive(bundled):
    """Bertviz draws a weight as opacity, which has no negative values."""
    assert min(float(layer.min()) for layer in idl.attentions(bundled, TEXT)) < 0
    for signed in ("clip", "abs"):
        assert (
            min(float(layer.min()) for layer in idl.attentions(bundled, TEXT, signed=signed)) >= 0
        )
