import pytest
import torch

from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.studies.structure.lengths import _too_short, special_positions, texts_of_length

LONG = "The ferry left before dawn, and nobody on the quay could say who had paid for it."


def test_clipped_texts_have_one_length(bundled):
    items = texts_of_length(bundled, [LONG, f"{LONG} {LONG}"], 12)
    assert [item.length for item in items] == [12, 12]
    assert items[0].tokens["encoder"][0] == "[CLS]"
    assert items[0].tokens["encoder"][-1] == "[SEP]"
    assert special_positions(bundled, items) == [0, 11]


def test_short_texts_are_named_or_skipped(bundled):
    texts = [LONG, "Short.", LONG, "Also short."]
    with pytest.raises(InputError, match="tokens"):
        texts_of_length(bundled, texts, 12)
    assert len(texts_of_length(bundled, texts, 12, shorter="skip")) == 2


@pytest.mark.parametrize("cut", ["clip", "window"])
def test_one_text_is_not_enough(bundled, cut):
    with pytest.raises(InputError, match="tokens"):
        texts_of_length(bundled, [LONG], 20, cut=cut)
    with pytest.raises(InputError, match="texts"):
        texts_of_length(bundled, ["a", "b"], 20, cut=cut, shorter="skip")


def test_windows_hold_every_token_once(bundled):
    items = texts_of_length(bundled, f"{LONG} {LONG} {LONG}", 12, cut="window")
    whole = bundled.read(f"{LONG} {LONG} {LONG}")[0].tokens["encoder"][1:-1]
    assert len(items) == len(whole) // 10
    inner = [token for item in items for token in item.tokens["encoder"][1:-1]]
    assert inner == list(whole[: len(inner)])
    assert {(item.tokens["encoder"][0], item.tokens["encoder"][-1]) for item in items} == {
        ("[CLS]", "[SEP]")
    }


def test_windows_of_token_ids_need_no_tokenizer():
    lens = Lens(build("gpt2"), name="tiny")
    items = texts_of_length(lens, [ids(23), ids(9, 1)], 8, cut="window")
    assert [item.tensors["input_ids"].tolist() for item in items] == [
        ids(23)[:8],
        ids(23)[8:16],
        ids(9, 1)[:8],
    ]
    assert special_positions(lens, items) == []
    with pytest.raises(InputError, match="tokens"):
        texts_of_length(lens, [ids(16), ids(5, 1)], 8, cut="window")


def test_every_sequence_of_a_text_is_long_enough_and_of_tokens():
    ids_of_two = {"input_ids": torch.tensor([1, 2])}
    item = Item(ids_of_two, {"encoder": ("a", "b"), "decoder": ("a", "b", "c")})
    assert [_too_short(item, 0, length) for length in (1, 2, 3)] == [False, False, True]
    for other in (
        Item(ids_of_two, {}),
        Item({"pixel_values": torch.zeros(3, 4, 4)}, {"encoder": ("a", "b")}),
    ):
        with pytest.raises(InputError, match="tokens"):
            _too_short(other, 7, 2)
