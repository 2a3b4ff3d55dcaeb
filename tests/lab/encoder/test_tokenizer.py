"""Basic-English normalisation, the vocabulary, and what is saved."""

from transformers import AutoTokenizer

from identilens.lab.encoder.training import build_tokenizer


def test_frequent_words_first_and_unknown_ones(tmp_path):
    tokenizer = build_tokenizer(["lamp lamp snow", "lamp snow road"], max_words=5, max_length=4)
    assert tokenizer.convert_ids_to_tokens([0, 1, 2, 3, 4]) == [
        "[PAD]", "[UNK]", "[CLS]", "lamp", "snow",
    ]  # fmt: skip
    assert tokenizer("Road lamp").input_ids == [2, 1, 3]
    assert tokenizer("").input_ids == [2]
    assert tokenizer("lamp " * 9, truncation=True).input_ids == [2, 3, 3, 3]
    tokenizer.save_pretrained(tmp_path)
    again = AutoTokenizer.from_pretrained(tmp_path)
    assert again("Snow, lamp").input_ids == tokenizer("Snow, lamp").input_ids
    assert again.model_max_length == 4
