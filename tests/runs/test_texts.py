"""Texts from files, streams, data sets and lists."""

import gzip
import io
import json
import lzma
import os
import sys
import threading

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import identilens as idl
from identilens.errors import InputError, OutputFolderError
from identilens.runs.texts import hub_dataset, read_texts


def test_pairs_are_two_columns(tmp_path):
    (tmp_path / "a.tsv").write_text("en\tde\none\teins\ntwo\tzwei\n", encoding="utf-8")
    expected = [("one", "eins"), ("two", "zwei")]
    assert read_texts(tmp_path / "a.tsv", columns=["en", "de"]) == expected


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"limit": 1.5}, "limit"), ({"limit": float("nan")}, "limit"), ({"limit": True}, "limit"),
        ({"columns": 5}, "columns"), ({"encoding": "none"}, "encoding"),
    ],
)  # fmt: skip
def test_options_of_another_kind_are_named(tmp_path, options, words):
    (tmp_path / "a.jsonl").write_text('{"a": "one"}\n{"a": "two"}\n')
    with pytest.raises(InputError, match=words.replace("\\", "\\\\")):
        read_texts(tmp_path / "a.jsonl", **{"columns": "a", **options})


def test_texts_of_the_largest_size_and_empty_ones():
    fits = "x" * 2**20
    assert read_texts([{"text": fits}]) == [fits]
    for empty in ("", " ", None, 3):
        with pytest.raises(InputError, match="column"):
            read_texts([{"text": empty}])
    with pytest.raises(InputError, match="there are a, b"):
        read_texts([{"a": "x", "b": "y"}])


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    "source",
    [5, None, pl.LazyFrame({"a": ["x"]}), b"snow", {"a": ["x"]}],
)  # fmt: skip
def test_what_holds_no_texts_is_named(source):
    with pytest.raises(InputError, match="texts"):
        read_texts(source)


ROWS_OF_TWO = [{"text": "one", "other": "eins"}, {"text": "two", "other": "zwei"}]


def test_columns_of_data_sets_and_rows():
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS_OF_TWO)
    for source in (ROWS_OF_TWO, data, data["text"], data.to_iterable_dataset()):
        assert read_texts(source) == ["one", "two"]
    for source in (ROWS_OF_TWO, data, data.to_iterable_dataset()):
        assert read_texts(source, columns=["other"], limit=1) == ["eins"]
        assert read_texts(source, columns=["text", "other"]) == [("one", "eins"), ("two", "zwei")]


def test_parquet_is_read_by_its_own_name(tmp_path):
    pl.DataFrame({"text": [f"text {number}" for number in range(8)]}).write_parquet(
        tmp_path / "a.parquet"
    )
    (tmp_path / "a.parquet").rename(tmp_path / "[a]?.parquet")
    assert len(read_texts(tmp_path / "[a]?.parquet", columns=["text"])) == 8
    with pytest.raises(InputError, match="column"):
        read_texts(tmp_path / "[a]?.parquet", columns=["body"])
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match="parquet"):
        read_texts(tmp_path / "b.parquet", columns=["text"])


def test_pipes_and_the_standard_input(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=("one\ntwo\n",))
    writer.start()
    assert read_texts(tmp_path / "pipe") == ["one", "two"]
    writer.join()
    stream = io.TextIOWrapper(io.BytesIO(b'{"a": "one"}\n{"a": "two"}\n'))
    monkeypatch.setattr(sys, "stdin", stream)
    assert read_texts("-", columns=["a"]) == ["one", "two"]


@pytest.mark.parametrize("opened", [gzip.open, lzma.open])
def test_a_compressed_file_is_read_whole_or_refused(tmp_path, opened):
    file = tmp_path / f"a.txt.{'gz' if opened is gzip.open else 'xz'}"
    with opened(file, "wb") as stream:
        for _ in range(64):
            stream.write(b"word " * 2**15 + b"\n")
    assert len(read_texts(file)) == 64
    whole = file.read_bytes()
    file.write_bytes(2 * whole)
    assert len(read_texts(file)) == 128
    file.write_bytes(whole[:-40])
    with pytest.raises(InputError, match="cannot be read"):
        read_texts(file)


def test_a_long_line_is_read(tmp_path):
    (tmp_path / "a.txt").write_text("short\n" + "word " * 2**21 + "\nlast\n", encoding="utf-8")
    assert len(read_texts(tmp_path / "a.txt")) == 3


ROWS = (
    ("a.csv", "a,b\none,two\nthree, four,five\n", "line 3: expected 2 fields"),
    ("a.csv", "a,b\none\n", "line 2: expected 2 fields"),
    ("a.csv", 'a,b\none,x\n"two\nthree,x\nfour,x\n', "line 2: unexpected end"),
    ("a.csv", 'a,b\n"one\ntwo,x\n"three",x\n', "line 1: ',' expected after"),
    ("a.csv", 'a,b\n"two\nlines",x\none,two,three\n', "line 4: expected 2 fields"),
    ("a.tsv", "a\tb\none\ttwo\tthree\n", "line 2: expected 2 fields"),
    ("a.tsv", 'a\tb\n"one\ntwo"\tx\n', "line 2: expected 2 fields"),
    ("a.csv.gz", "a,b\none,two\nthree,four,five\n", "line 3: expected 2 fields"),
    ("a.jsonl", '{"a": "one"}\n{"a": "two"', "line 2: not valid JSON"),
    ("a.jsonl", '{"a": "fine"}\n{"a": ' + "[" * 100_000, "line 2: .*valid"),
)


@pytest.mark.parametrize(("name", "content", "expected"), ROWS, ids=range(len(ROWS)))
def test_a_row_of_which_a_part_would_be_lost_is_refused(tmp_path, name, content, expected):
    packed = gzip.compress(content.encode()) if name.endswith(".gz") else content.encode()
    (tmp_path / name).write_bytes(packed)
    with pytest.raises(InputError, match=f"{name}, {expected}"):
        read_texts(tmp_path / name, columns=["a"])


LONG = "word " * 20_000


def test_columns_of_a_table_that_hold_no_texts_are_refused(tmp_path):
    file = tmp_path / "a.parquet"
    pl.DataFrame({"other": range(3)}).write_parquet(file)
    with pytest.raises(InputError, match="not a text"):
        read_texts(file, columns=["other"])


@pytest.mark.parametrize("kind", [pl.String, pl.Categorical, pl.Enum(["a", LONG])])
@pytest.mark.parametrize("column", ["text", "^t.*$", "*"])
def test_texts_of_every_type_are_read(tmp_path, kind, column):
    file = tmp_path / "a.parquet"
    texts = [LONG, "a"] * 30
    pl.DataFrame({column: pl.Series(texts, dtype=kind), "text_": texts}).write_parquet(file)
    assert read_texts(file, columns=[column]) == texts
    assert read_texts(file, columns=[column], limit=3) == texts[:3]


KINDS = {
    "a.txt": lambda words: "\n\n" + "\n \n".join(words) + "\n",
    "b.jsonl": lambda words: "".join(
        f'\n{{"other": 1, "text": {json.dumps(one)}}}\r\n' for one in words
    ),
    "c.csv": lambda words: "other,text\n" + "".join(f'1,"{one}, and\nmore"\n\n' for one in words),
    "d.tsv": lambda words: "text\tother\n" + "".join(f"{one}\t2\n" for one in words),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16", "shift_jis"])
def test_texts_of_a_file_in_any_encoding(tmp_path, name, encoding):
    words = [f"text {number} {'é' if encoding != 'shift_jis' else 'あ'}" for number in range(9)]
    file = tmp_path / name
    file.write_bytes(KINDS[name](words).encode(encoding))
    columns = [] if name == "a.txt" else ["text"]
    given = {"columns": columns, "encoding": encoding.removesuffix("-sig")}
    texts = read_texts(file, **given)
    expected = [f"{one}, and\nmore" if name == "c.csv" else one for one in words]
    assert texts == expected
    assert read_texts(file, **given, limit=3) == expected[:3]


def test_files_with_null_characters_are_no_text(tmp_path):
    file = tmp_path / "a.txt"
    for encoding in ("utf-16-le", "utf-16-be"):
        file.write_bytes("one\ntwo\n".encode(encoding))
        with pytest.raises(InputError, match="character"):
            read_texts(file)
        assert read_texts(file, encoding=encoding) == ["one", "two"]
    file.write_bytes("one\ntwo\n".encode("utf-16"))
    with pytest.raises(InputError, match="is not utf-8"):
        read_texts(file)


def test_a_data_set_that_cannot_be_loaded_is_named_with_the_first_line_of_the_reason(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(InputError, match=r"none cannot be loaded \([^\n]+\)\. Check dataset="):
        hub_dataset(str(tmp_path / "none"), "train", None)
    (tmp_path / "none").mkdir()
    (tmp_path / "none" / "a.jsonl").write_text('{"text": "snow"}')
    assert read_texts(hub_dataset(str(tmp_path / "none"), "train", None)) == ["snow"]
    with pytest.raises(InputError, match="none cannot be loaded"):
        hub_dataset(str(tmp_path / "none"), "test", None)


def test_texts_are_drawn_alike_however_many_there_are_and_wherever_they_lie(
    bundled, tmp_path, monkeypatch
):
    """The limits above which memory is spared change no number."""
    monkeypatch.setattr("identilens.studies.items._KEPT", 2)
    texts = [
        f"The ferry number {number} left before {'the ' * (number % 5)}dawn."
        for number in range(40)
    ]
    (tmp_path / "a.txt").write_text("\n".join(texts))
    chosen = {"layers": 0, "examples": 3}
    whole = idl.audit(bundled, texts, **chosen)
    many = idl.audit(bundled, (text for text in texts), out=tmp_path / "run", **chosen)
    filed = idl.audit(bundled, read_texts(tmp_path / "a.txt"), **chosen)
    for name in whole.schema:
        assert_frame_equal(getattr(many, name), getattr(whole, name))
        assert_frame_equal(getattr(filed, name), getattr(whole, name))
    assert many.tokens.keys() == whole.tokens.keys()
    assert many.provenance["texts"]["count"] == 40
    assert len(many.provenance["texts"]["sha256"]) == 40
    with pytest.raises(OutputFolderError, match="digest 39 of texts"):
        idl.audit(
            bundled, iter([*texts[:-1], "Another."]), out=tmp_path / "run", resume=True, **chosen
        )
