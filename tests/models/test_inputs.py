"""Every accepted form of input, and errors for what cannot be used."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from helpers.heads import seeded
from helpers.zoo import build, ids
from identilens.errors import InputError, ModelNotFoundError
from identilens.models import Lens, bundled_model, load
from identilens.models.padding import cut_padding


def test_string_list_ids_and_batch_give_the_same(bundled):
    text = "Nobody came to the station."
    token_ids = bundled.tokenizer(text)["input_ids"]
    batch = bundled.tokenizer(
        [text, "A longer text so that the first one is padded here."],
        padding=True,
        return_tensors="pt",
    )
    forms = [text, [text], token_ids, [token_ids], torch.tensor(token_ids), batch]
    first = [next(bundled.capture(form)) for form in forms]
    for captured in first:
        assert captured.tokens["encoder"] == first[0].tokens["encoder"]
        assert_close(
            captured.layers[3].head_output, first[0].layers[3].head_output, atol=2e-5, rtol=1e-4
        )


def test_pair_is_source_and_target_for_encoder_decoders():
    class Words:
        all_special_tokens = ()

        def __call__(self, first, second, **options):
            return {"input_ids": [5 + len(word) for word in first.split()]}

        def convert_ids_to_tokens(self, numbers):
            return [f"w{number}" for number in numbers]

    text = next(Lens(build("t5"), Words()).capture([("a bb ccc", "dddd e")]))
    assert text.tokens == {"encoder": ("w6", "w7", "w8"), "decoder": ("w0", "w9")}
    single = next(Lens(build("t5"), Words()).capture("a bb ccc"))
    assert single.tokens["decoder"] == ("w0", "w6", "w7")


def test_a_text_that_begins_with_the_first_token_gets_no_second_one():
    lens = load("bundled-decoder")
    first = lens.tokenizer.bos_token
    plain, prompt = lens.read("The ferry left.")[0], lens.read(f"{first}The ferry left.")[0]
    assert prompt.tokens["decoder" if "decoder" in prompt.tokens else "encoder"].count(first) == 1
    assert plain.tensors["input_ids"][0] == prompt.tensors["input_ids"][0]
    assert lens.read(f"{first}The ferry left.", max_length=3)[0].length == 3
    assert lens.read(f"{first}{first}The ferry left.")[0].length == prompt.length + 1


def test_images_and_their_positions():
    class Processor:
        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.as_tensor(np.asarray(images), dtype=torch.float32)[None]}

    lens = Lens(build("vit"), image_processor=Processor())
    image = np.random.default_rng(0).normal(size=(3, 12, 12))
    text = next(lens.capture(image))
    assert text.tokens["encoder"][:2] == ("[CLS]", "patch 0,0")
    assert len(text.tokens["encoder"]) == 10
    with pytest.raises(InputError, match="needs an image_processor"):
        next(Lens(build("vit")).capture(image))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["fine", "  \n"], "text 1 is empty"),
        ([("fine", "")], "text 0 is empty"),
        ([], "expected one or more texts"),
        ([[]], "text 0 has type list"),
        ([[5, 99999]], "token ids are from 0 to 30521; got 5 at least, 99999"),
        ({"labels": 3}, "a batch needs tensors"),
        (
            {"input_ids": torch.zeros(1, 3).long(), "attention_mask": torch.zeros(1, 3)},
            "has no token ids",
        ),
    ],
)
def test_unusable_input(bundled, inputs, message):
    with pytest.raises(InputError, match=message):
        next(bundled.capture(inputs))


def test_text_longer_than_the_positions_names_the_option(bundled):
    long = "word " * 600
    with pytest.raises(
        InputError, match=r"602 tokens, and the model has 512 positions.*--max-length 512"
    ):
        next(bundled.capture(long))
    text = next(bundled.capture(long, max_length=20))
    assert len(text.tokens["encoder"]) == 20
    assert text.tokens["encoder"][-1] == "[SEP]"


def test_bundled_model_is_found_without_an_import(bundled_path, tmp_path, monkeypatch):
    assert bundled_model() == bundled_path
    fake = tmp_path / "fake_package"
    (fake / "model").mkdir(parents=True)
    (fake / "__init__.py").write_text("raise RuntimeError('imported')")
    (fake / "model" / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("identilens.models.bundled.PACKAGE", "fake_package")
    assert bundled_model() == fake / "model"
    monkeypatch.setattr("identilens.models.bundled.PACKAGE", "no_such_package_at_all")
    with pytest.raises(ModelNotFoundError, match=r"identilens\[demo\]"):
        bundled_model()


def rows(model, **batch):
    """Each text's weights, and those that the model gives for its row of the batch."""
    model.set_attn_implementation("eager")
    lens = Lens(model)
    with torch.no_grad():
        own = model(**batch, output_attentions=True, use_cache=False).attentions
    for row, text in enumerate(lens.capture(batch, weights=True)):
        for layer, weights in zip(text.layers, own, strict=True):
            yield layer.weights, weights[row]


PACKED = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5, 0, 1, 2]])


@pytest.mark.parametrize("masked", [False, True])
def test_documents_packed_into_a_row_stay_apart_unless_a_mask_joins_them(masked):
    batch = {"input_ids": torch.tensor([ids(9), ids(9, 1)]), "position_ids": PACKED}
    if masked:
        batch["attention_mask"] = torch.ones(2, 9, dtype=torch.long)
    pairs = list(rows(build("llama"), **batch))
    for weights, own in pairs:
        assert_close(weights, own, atol=1e-5, rtol=0)
    assert bool(pairs[0][0][:, 4:, :4].any()) == masked


def test_packed_rows_share_no_padded_batch():
    lens = Lens(build("llama"))
    items = [
        lens.read({"input_ids": torch.tensor([ids(size)]), "position_ids": PACKED[:1, :size]})[0]
        for size in (9, 6)
    ]
    assert list(lens.batches(items, [0, 1], 8)) == [[0], [1]]


CACHED = ((torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8)),)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({"past_key_values": CACHED}, r"got \[.past_key_values.\]\. Give whole texts and no cache"),
        ({"token_type_ids": [[0] * 6]}, r"got \[.token_type_ids.\]\. .*return_tensors"),
        ({"logits_to_keep": torch.tensor(1)}, r"got \['logits_to_keep'\]"),
        (
            {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 0]])},
            "attention_mask of text 0: expected 2 axes .*, without a gap",
        ),
        (
            {"attention_mask": torch.tensor([[0.0, 0, 0, 0, 0, -1e9]])},
            "text 0: expected 2 axes",
        ),
        (
            {"attention_mask": torch.tensor([[1, 1, 1, 1, 2, 0]])},
            "attention_mask of text 0: expected 2 axes",
        ),
        ({"attention_mask": torch.ones(1, 6, 6).tril()}, "text 0: expected"),
    ],
)
def test_what_a_batch_must_not_hold(batch, message):
    with pytest.raises(InputError, match=message):
        Lens(build("gpt2")).read({"input_ids": torch.tensor([ids(6)]), **batch})


def test_what_is_none_is_left_out():
    batch = {"input_ids": torch.tensor([ids(6)]), "token_type_ids": None, "past_key_values": None}
    assert set(Lens(build("gpt2")).read(batch)[0].tensors) == {"input_ids"}


def test_padding_that_masks_mark_is_cut():
    def cut(**tensors):
        held = {name: torch.as_tensor(one) for name, one in tensors.items()}
        cut_padding(held, 3)
        return {name: one.tolist() for name, one in held.items()}

    assert cut(input_ids=[0, 5, 6], attention_mask=[0, 1, 1], token_type_ids=[9, 1, 1]) == {
        "input_ids": [5, 6], "token_type_ids": [1, 1],
    }  # fmt: skip
    packed = cut(input_ids=[5, 6, 0], attention_mask=[1, 1, 0], position_ids=[0, 0, 0])
    assert packed == {"input_ids": [5, 6], "attention_mask": [1, 1], "position_ids": [0, 0]}
    both = cut(
        input_ids=[5, 0],
        attention_mask=[1, 0],
        decoder_input_ids=[7, 8],
        decoder_attention_mask=[0, 1],
    )
    assert both == {"input_ids": [5], "decoder_input_ids": [8]}
    # The first axis of a picture is one of channels, not of positions.
    held = {"input_features": torch.ones(2, 3, 4), "attention_mask": torch.tensor([1, 0])}
    cut_padding(held, 0)
    assert held["input_features"].shape == (2, 3, 4)
    assert held["attention_mask"].tolist() == [1, 0]
    sound = cut(input_values=[0.5, 0.25, 0.0], attention_mask=[1, 1, 0])
    assert sound == {"input_values": [0.5, 0.25], "attention_mask": [1, 1]}
    assert cut(input_ids=[5, 6], attention_mask=[1, 1, 0]) == {
        "input_ids": [5, 6],
        "attention_mask": [1, 1, 0],
    }


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
