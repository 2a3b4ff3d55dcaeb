"""Reading the ten tasks: forms of files, splits, and rows that cannot be used."""

import lzma
from dataclasses import replace

import pytest
from transformers import AutoTokenizer

from helpers.made_tasks import write_trec
from identilens.errors import InputError
from identilens.lab.encoder.readers import read_part, splits_of
from identilens.lab.encoder.settings import EncoderSettings
from identilens.lab.encoder.tasks import TASKS
from identilens.lab.encoder.training import build_tokenizer

TSV = {
    "imdb": ("id\tlabel\trating\ttext", "0\t1\t9\tA keeper's film.", "A keeper's film.", 1),
    "trec": ("coarse\tfine\tquestion", "HUM\tind\tWho kept the lamp ?", "Who kept the lamp ?", 3),
    "sst": ("label5\tlabel3\tlabel2\tsentence", "3\t2\t1\tA bright lamp .", "A bright lamp .", 2),
    "snli": (
        "label\tpremise\thypothesis",
        "contradiction\tThe lamp burns.\tIt is dark.",
        ("The lamp burns.", "It is dark."),
        2,
    ),
    "dbpedia": (
        "label\ttitle\ttext\tsource",
        "14\tThe Lamp\tA novel.\tany",
        "The Lamp A novel.",
        13,
    ),
    "ag_news": ("label\ttext", "2\tHarbour wins the cup", "Harbour wins the cup", 1),
}
CSV = {
    "yelp": ('"2","Good soup,\\nwarm bread."', "Good soup, warm bread.", 1),
    "sogou": ('"5","qi che","xin che shang shi"', "qi che xin che shang shi", 4),
    "ag_news": ('"4","New lamp","It lasts \\$10 longer."', "New lamp It lasts  $10 longer.", 3),
    "yahoo": ('"10","Why?","","Because of ""tides""."', 'Why? Because of "tides".', 9),
    "amazon": ('"1","Broken","It came ""broken""."', 'Broken It came "broken".', 0),
    "dbpedia": ('"1","Acme"," A maker of lamps."', "Acme  A maker of lamps.", 0),
}


@pytest.mark.parametrize("name", TSV)
@pytest.mark.parametrize("packed", [False, True])
def test_tab_separated_files(name, packed, tmp_path):
    header, row, text, label = TSV[name]
    content = f"{header}\n{row}\n"
    if packed:
        with lzma.open(tmp_path / "train20k.tsv.xz", "wt", encoding="utf-8") as stream:
            stream.write(content)
    else:
        (tmp_path / "train.tsv").write_text(content, encoding="utf-8")
    assert read_part(TASKS[name], tmp_path, "train") == [(text, label)]


@pytest.mark.parametrize("name", CSV)
def test_comma_separated_files_without_header(name, tmp_path):
    row, text, label = CSV[name]
    (tmp_path / name).mkdir()
    (tmp_path / name / "test.csv").write_text(row + "\n", encoding="utf-8")
    assert read_part(TASKS[name], tmp_path, "test") == [(text, label)]


def test_thirty_per_cent_are_held_out_by_seed(tmp_path):
    write_trec(tmp_path, train=50)
    settings = EncoderSettings(task="trec", data=tmp_path, seed=3)
    splits = splits_of(settings)
    assert [*map(len, splits.values())] == [35, 15, 20]
    whole = read_part(TASKS["trec"], tmp_path, "train")
    assert sorted(splits["train"] + splits["validation"]) == sorted(whole)
    assert splits_of(settings) == splits
    assert splits_of(replace(settings, seed=4)) != splits
    limited = splits_of(replace(settings, limit=10))
    assert [*map(len, limited.values())] == [7, 3, 20]
    with pytest.raises(InputError, match="training"):
        splits_of(replace(settings, limit=1))


def test_a_given_validation_part_is_taken(tmp_path):
    header = "label5\tlabel3\tlabel2\tsentence"
    for part, count in (("train", 4), ("dev", 3), ("test", 2)):
        rows = "\n".join(f"1\t0\t0\t{part} {row}" for row in range(count))
        (tmp_path / f"{part}.tsv").write_text(f"{header}\n{rows}\n", encoding="utf-8")
    splits = splits_of(EncoderSettings(task="sst", data=tmp_path))
    assert sorted(splits["train"]) == [(f"train {row}", 0) for row in range(4)]
    assert splits["validation"] == [(f"dev {row}", 0) for row in range(3)]


@pytest.mark.parametrize("row", ["HUM\tind\t ", "WHO\tind\tWho kept the lamp ?", "HUM"])
def test_rows_that_cannot_be_used_are_named(row, tmp_path):
    (tmp_path / "train.tsv").write_text(f"coarse\tfine\tquestion\n{row}\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 1"):
        read_part(TASKS["trec"], tmp_path, "train")


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
