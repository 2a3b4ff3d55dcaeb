"""Tagged texts from CoNLL-U: words placed by characters, read as texts everywhere."""

import copy
import pickle

import pytest

from helpers.treebanks import SENTENCES
from identilens.errors import InputError
from identilens.runs.conllu import TaggedText, Word, read_conllu
from identilens.runs.texts import read_texts


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "small.conllu"
    path.write_text(SENTENCES, encoding="utf-8")
    return path


def test_words_are_placed_in_the_text(treebank):
    first, second = read_conllu(treebank)
    assert [(first[start:end], tag) for start, end, tag in first.spans()] == [
        ("We", "PRP"), ("can", "MD"), ("not", "RB"), ("unbelievably", "RB"), ("go", "VB"), (",", ","),
        # The forms "ca" and "not" do not spell what is written: the whole takes the first word's tags.
        ("can't", "MD"), ("we", "PRP"), ("?", "."),
    ]  # fmt: skip
    assert first.spans("upos")[:2] == [(0, 2, "PRON"), (3, 6, "AUX")]
    assert second == "Gladly"
    # Numbers that are words of no text (5.1), and parts that became one word (7 and 8), count for those that are.
    assert [word.head for word in first.words] == [3, 3, 3, None, None, 3, 3, 3, 3]
    assert [word.relation for word in first.words][5:] == ["punct", "aux", "nsubj", "punct"]
    assert second.words == (Word(0, 6, "RB", "ADV", None, "root"),)
    assert len(read_conllu(treebank, limit=1)) == 1


def test_heads_are_found_behind_words_of_several_parts(tmp_path):
    rows = [
        ("1-2", "can't", "_", "_"), (1, "ca", 3, "aux"), (2, "not", 1, "x"), (3, "go", 2, "y"),
        (4, "!", 9, "z"),
    ]  # fmt: skip
    lines = [f"{n}\t{form}\t_\tX\tY\t_\t{head}\t{what}\t_\t_\n" for n, form, head, what in rows]
    (tmp_path / "a.conllu").write_text("# text = can't go!\n" + "".join(lines))
    [text] = read_conllu(tmp_path / "a.conllu")
    assert [(word.head, word.relation) for word in text.words] == [
        (1, "aux"),
        (0, "y"),
        (None, "z"),
    ]


def test_a_copied_text_keeps_its_words():
    text = TaggedText("red sky", [Word(0, 3, "JJ", "ADJ")])
    for again in (copy.deepcopy(text), pickle.loads(pickle.dumps(text))):
        assert again == "red sky"
        assert again.words == text.words


def test_a_file_of_texts_like_any_other(treebank):
    assert [text.spans("upos")[0][2] for text in read_texts(treebank)] == ["PRON", "ADV"]
    treebank.write_bytes(b"# text = \xff\n")
    with pytest.raises(InputError, match="utf-8"):
        read_texts(treebank)


def test_unusable_files_are_refused_by_line(tmp_path, treebank):
    with pytest.raises(InputError, match="conllu"):
        read_conllu(tmp_path / "none.conllu")
    for old, new, message in (
        ("# text = Gladly", "# note", "sentence 2 cannot be read: KeyError.'text'"),
        ("1\tGladly\tgladly", "1 Gladly gladly", "sentence 2 .*Gladly"),
        ("1\tGladly\t", "1\tSadly\t", "sentence 2 .*'Sadly' is not the next word of its text"),
        ("gladly\tADV\tRB\t_\t0\troot", "gladly\tADV", "sentence 2 .*KeyError"),
    ):
        treebank.write_text(SENTENCES.replace(old, new), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_conllu(treebank)
    treebank.write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"contains no sentences"):
        read_conllu(treebank)


ROW = "{}\t{}\t_\tX\tY\t_\t0\troot\t_\t_\n"


@pytest.mark.parametrize(
    ("text", "rows", "message"),
    [
        ("ab c", [("1-9", "ab"), (1, "a"), (2, "b"), (3, "c")], "after"),
        ("ab c", [("5-6", "ab"), (1, "a"), (2, "b"), (3, "c")], "after"),
        ("ab", [("1-2", "ab")], "sentence 1"),
        ("ab", [("2-1", "ab"), (1, "a"), (2, "b")], "valid"),
        ("ab", [("1-" + "9" * 5000, "ab")], "sentence 1"),
        ("a b c", [(1, "a")], "after"),
        ("a b", [], "after"),
        ("a b", [(1, ""), (2, "a"), (3, "b")], "sentence 1"),
    ],
)  # fmt: skip
def test_no_word_of_a_damaged_file_is_lost_without_a_word(tmp_path, text, rows, message):
    file = tmp_path / "a.conllu"
    file.write_text(f"# text = {text}\n" + "".join(ROW.format(*row) for row in rows))
    with pytest.raises(InputError, match=message):
        read_conllu(file)
