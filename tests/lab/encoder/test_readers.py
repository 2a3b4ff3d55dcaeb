"""Reading the ten tasks: local forms, the hub's form, splits, and rows that cannot be used."""

import lzma

import pytest

from helpers.made_tasks import write_trec
from identilens.errors import InputError
from identilens.lab.encoder.readers import Examples, read_hub, read_local, read_splits
from identilens.lab.encoder.settings import EncoderSettings
from identilens.lab.encoder.tasks import TASKS

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
    assert read_local(TASKS[name], tmp_path, "train") == Examples((text,), (label,))


@pytest.mark.parametrize("name", CSV)
def test_comma_separated_files_without_header(name, tmp_path):
    row, text, label = CSV[name]
    (tmp_path / name).mkdir()
    (tmp_path / name / "test.csv").write_text(row + "\n", encoding="utf-8")
    assert read_local(TASKS[name], tmp_path, "test") == Examples((text,), (label,))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            "NUM\tany\tHow many ?\nWHO\tany\tWho ?",
            r"train.tsv, line 3: label 'WHO' is not one of ABBR, ENTY",
        ),
        ("NUM\tany\tHow many ?\n\nHUM\tany\t \n", r"train.tsv, line 4: the text is empty"),
        ("NUM\tany", r"train.tsv, line 2: expected 3 columns"),
        ("NUM\tany\tHow many ?\tmore", r"train.tsv, line 2: expected 3 columns"),
        ("", "contains no rows"),
    ],
)
def test_bad_rows_are_named_by_line(rows, message, tmp_path):
    (tmp_path / "train.tsv").write_text(f"coarse\tfine\tquestion\n{rows}", encoding="utf-8")
    with pytest.raises(InputError, match=message):
        read_local(TASKS["trec"], tmp_path, "train")


def test_bad_csv_rows_are_named_by_line(tmp_path):
    (tmp_path / "train.csv").write_text('"1","fine"\n"3","bad label"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"train.csv, line 2: label '3' is not one of 1, 2"):
        read_local(TASKS["yelp"], tmp_path, "train")
    (tmp_path / "train.csv").write_text('"1"\n', encoding="utf-8")
    with pytest.raises(InputError, match=r"train.csv, line 1: expected a label and a text"):
        read_local(TASKS["yelp"], tmp_path, "train")


def test_files_that_are_missing_or_too_many(tmp_path):
    with pytest.raises(InputError, match="needs one train file of trec .* found none"):
        read_local(TASKS["trec"], tmp_path, "train")
    for name in ("train.tsv", "train20k.tsv"):
        (tmp_path / name).write_text("coarse\tfine\tquestion\nHUM\tx\tWho ?\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"found train.tsv, train20k.tsv"):
        read_local(TASKS["trec"], tmp_path, "train")
    (tmp_path / "train20k.tsv").unlink()
    with pytest.raises(InputError, match="no column label3, sentence in its header"):
        read_local(TASKS["sst"], tmp_path, "train")
    (tmp_path / "train.tsv").write_bytes(
        "coarse\tfine\tquestion\nHUM\tx\tWer läutet ?\n".encode("latin-1")
    )
    with pytest.raises(InputError, match="is not utf-8"):
        read_local(TASKS["trec"], tmp_path, "train")


def test_thirty_per_cent_are_held_out_by_seed(tmp_path):
    write_trec(tmp_path, train=50)
    task = TASKS["trec"]
    splits = read_splits(task, tmp_path, seed=3)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (35, 15, 20)
    whole = read_local(task, tmp_path, "train")
    together = [*zip(splits.train.texts, splits.train.labels, strict=True)]
    together += zip(splits.validation.texts, splits.validation.labels, strict=True)
    assert sorted(together) == sorted(zip(whole.texts, whole.labels, strict=True))
    assert read_splits(task, tmp_path, seed=3) == splits
    assert read_splits(task, tmp_path, seed=4) != splits
    limited = read_splits(task, tmp_path, limit=10)
    assert (len(limited.train), len(limited.validation), len(limited.test)) == (7, 3, 20)
    with pytest.raises(InputError, match="at least two training rows"):
        read_splits(task, tmp_path, limit=1)


def test_a_given_validation_part_is_taken(tmp_path):
    header = "label5\tlabel3\tlabel2\tsentence"
    for part, count in (("train", 4), ("dev", 3), ("test", 2)):
        rows = "\n".join(f"1\t0\t0\t{part} {row}" for row in range(count))
        (tmp_path / f"{part}.tsv").write_text(f"{header}\n{rows}\n", encoding="utf-8")
    splits = read_splits(TASKS["sst"], tmp_path)
    assert sorted(splits.train.texts) == [f"train {row}" for row in range(4)]
    assert splits.validation.texts == ("dev 0", "dev 1", "dev 2")


def test_the_hubs_form_through_datasets(tmp_path):
    datasets = pytest.importorskip(
        "datasets", reason="install identilens[datasets] to read from the hub"
    )
    rows = {"text": ["A bright lamp .", "A dull one .", "No judgement ."], "label": [4, 0, 2]}
    single = tmp_path / "single"
    single.mkdir()
    datasets.Dataset.from_dict(rows).to_parquet(single / "train.parquet")
    found = read_hub(TASKS["sst"], "train", str(single))
    assert found == Examples(tuple(rows["text"]), (2, 0, 1))
    pairs = {
        "premise": ["The lamp burns."] * 2,
        "hypothesis": ["It is dark.", "It is lit."],
        "label": [2, -1],
    }
    (tmp_path / "pairs").mkdir()
    datasets.Dataset.from_dict(pairs).to_parquet(tmp_path / "pairs" / "test.parquet")
    assert read_hub(TASKS["snli"], "test", str(tmp_path / "pairs")) == Examples(
        (("The lamp burns.", "It is dark."),), (2,)
    )
    with pytest.raises(InputError, match="has no column hypothesis, premise"):
        read_hub(TASKS["snli"], "train", str(single))
    with pytest.raises(InputError, match="label 4 is not one of 0 to 1"):
        read_hub(TASKS["imdb"], "train", str(single))
    with pytest.raises(InputError, match="cannot be loaded"):
        read_hub(TASKS["imdb"], "train", str(tmp_path / "nowhere"))


@pytest.mark.usefixtures("unchecked_shapes")
def test_unknown_tasks_list_the_known_ones():
    with pytest.raises(InputError, match=r"task to be imdb or trec or .* got 'mnist'"):
        EncoderSettings(task="mnist")


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("trec", (3816, 1636, 500)),
        ("sst", (8544, 1101, 2210)),
        ("snli", (19999, 9842, 9824)),
        ("ag_news", (14000, 6000, 7600)),
        ("dbpedia", (14000, 6000, 7600)),
        ("imdb", (17500, 7500, 25000)),
    ],
)
def test_the_real_data(name, counts, data):
    task = TASKS[name]
    splits = read_splits(task, data)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == counts
    assert set(splits.train.labels) == set(range(len(task.labels)))
