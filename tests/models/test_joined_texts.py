"""Models that join the texts of a batch are captured one text at a time, with the numbers of each alone."""

import pytest
import torch

import identilens as idl
from helpers.zoo import ids
from identilens.errors import JoinedTextsError
from identilens.families.tiny import tiny_models
from identilens.models import Lens


def joining(family):
    """Return a lens on a tiny model, and inputs that it joins in a batch."""
    lens = Lens(next(iter(tiny_models(family))))
    side = getattr(lens.model.config, "image_size", None)
    if side is None:
        return lens, [ids(9), ids(5)]
    return lens, {"pixel_values": torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("family", ["pixtral", "prophetnet"])
def test_each_text_is_as_it_is_alone(family):
    lens, inputs = joining(family)
    items = lens.read(inputs)
    with pytest.raises(JoinedTextsError, match="one text, picture or recording at a time"):
        lens.prove_once(items)
    for together, item in zip(lens.capture(inputs, weights=True), items, strict=True):
        alone = next(lens.capture(item, weights=True))
        for one, other in zip(together.layers, alone.layers, strict=True):
            assert torch.equal(one.weights, other.weights)


def test_an_audit_goes_on_one_text_at_a_time():
    lens, inputs = joining("prophetnet")
    table = idl.audit(lens, inputs, certain_rows=0, examples=0).table
    assert table["text"].unique().to_list() == [0, 1]
    alone = idl.audit(joining("prophetnet")[0], inputs, certain_rows=0, examples=0, batch_size=1).table
    assert table.equals(alone)


def test_pictures_of_which_a_grid_tells_the_number():
    lens = Lens(next(iter(tiny_models("glm4v_vision"))))
    batch = {"hidden_states": torch.randn(16, 3 * 2 * 14**2), "grid_thw": torch.tensor([[1, 4, 4]])}
    width = lens.model.patch_embed.proj.weight[0].numel()
    batch["hidden_states"] = torch.randn(16, width, generator=torch.Generator().manual_seed(0))
    assert [len(text.layers[0].values[0]) for text in lens.capture(batch)] == [16]
