import pytest
import torch

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.studies.structure.lengths import _size, special_positions, texts_of_length

LONG = "The ferry left before dawn, and nobody on the quay could say who had paid for it."


def test_clipped_texts_have_one_length(bundled):
    items = texts_of_length(bundled, [LONG, f"{LONG} {LONG}"], 12, "error")
    assert [item.length for item in items] == [12, 12]
    assert items[0].tokens["encoder"][0] == "[CLS]"
    assert items[0].tokens["encoder"][-1] == "[SEP]"
    assert special_positions(bundled, items) == [0, 11]


def test_short_texts_are_named_or_skipped(bundled):
    texts = [LONG, "Short.", LONG, "Also short."]
    with pytest.raises(InputError, match="tokens"):
        texts_of_length(bundled, texts, 12, "error")
    assert len(texts_of_length(bundled, texts, 12, "skip")) == 2


def test_one_text_is_not_enough(bundled):
    with pytest.raises(InputError, match="texts"):
        texts_of_length(bundled, [LONG], 12, "error")
    with pytest.raises(InputError, match="texts"):
        texts_of_length(bundled, ["a", "b"], 20, "skip")


def test_every_sequence_of_a_text_is_long_enough_and_of_tokens():
    ids_of_two = {"input_ids": torch.tensor([1, 2])}
    item = Item(ids_of_two, {"encoder": ("a", "b"), "decoder": ("a", "b", "c")})
    assert _size(item, 0) == 2
    for other in (
        Item(ids_of_two, {}),
        Item({"pixel_values": torch.zeros(3, 4, 4)}, {"encoder": ("a", "b")}),
    ):
        with pytest.raises(InputError, match="tokens"):
            _size(other, 7)
