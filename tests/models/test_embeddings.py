"""Embeddings in place of token ids: padding, lengths, and inputs that may be one per token."""

import pytest
import torch

from helpers.heads import seeded
from helpers.zoo import build
from identilens.errors import InputError
from identilens.models import Lens

EMBEDDINGS = torch.randn(2, 6, 32, generator=seeded())
WHOLE = torch.ones(2, 6, dtype=torch.long)
RIGHT = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])


def outputs(lens, embeddings, mask):
    batch = {"inputs_embeds": embeddings, "attention_mask": mask}
    return [text.layers[1].head_output for text in lens.capture(batch, weights=True)]


@pytest.mark.parametrize("side", ["right", "left"])
def test_padded_embeddings_after_a_batch_without_padding(side):
    lens = Lens(build("llama"))
    outputs(lens, EMBEDDINGS, WHOLE)
    moved = EMBEDDINGS.clone()
    if side == "left":
        moved[1] = EMBEDDINGS[1].roll(2, 0)
    found = outputs(lens, moved, RIGHT if side == "right" else RIGHT.flip(1))
    alone = outputs(Lens(build("llama")), EMBEDDINGS[1:, :4], WHOLE[1:, :4])
    assert [one.shape[1] for one in found] == [6, 4]
    assert torch.allclose(found[1], alone[0], atol=1e-5)


def test_embeddings_have_names_and_can_be_cut():
    (item,) = Lens(build("llama")).read({"inputs_embeds": EMBEDDINGS[:1]}, max_length=3)
    assert item.tokens == {"encoder": ("position 0", "position 1", "position 2")}
    assert item.tensors["inputs_embeds"].shape == (3, 32)


def test_unknown_inputs_as_long_as_a_padded_text_are_refused():
    lens = Lens(build("llama"))
    batch = {"inputs_embeds": EMBEDDINGS, "langs": torch.zeros(2, 6, dtype=torch.long)}
    with pytest.raises(InputError, match="entries"):
        lens.read({**batch, "attention_mask": RIGHT})
    assert len(lens.read({**batch, "attention_mask": WHOLE})) == 2


def test_a_mask_that_the_model_has_to_heed_is_proven_anew():
    lens = Lens(build("vit"))
    items = lens.read({"pixel_values": torch.zeros(1, 3, 16, 16)})
    assert items[0].hiding == frozenset()
    masked = {"pixel_values": torch.zeros(1, 3, 16, 16), "bool_mask": torch.zeros(1, 4)}
    assert lens.read(masked)[0].hiding == {"bool_mask"}
