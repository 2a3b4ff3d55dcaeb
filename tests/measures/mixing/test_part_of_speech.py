"""Tags from CoNLL-U, spaCy or a function, carried over to sub-words by characters."""

import sys
import types

import polars as pl
import pytest

from identilens.errors import InputError
from identilens.measures.mixing import part_of_speech, spacy_tagger, token_tags
from identilens.measures.mixing.part_of_speech import NO_WORD
from identilens.runs.conllu import TaggedText, read_conllu
from identilens.studies.mixing.study import mixing

SENTENCES = """# sent_id = 1
# text = We cannot unbelievably  go, can't we?
1\tWe\twe\tPRON\tPRP\t_\t4\tnsubj\t_\t_
2-3\tcannot\t_\t_\t_\t_\t_\t_\t_\t_
2\tcan\tcan\tAUX\tMD\t_\t4\taux\t_\t_
3\tnot\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
4\tunbelievably\tx\tADV\tRB\t_\t0\troot\t_\t_
5\tgo\tgo\tVERB\tVB\t_\t0\troot\t_\t_
5.1\tgo\tgo\tVERB\tVBG\t_\t_\t_\t_\t_
6\t,\t,\tPUNCT\t,\t_\t4\tpunct\t_\t_
7-8\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
7\tca\tcan\tAUX\tMD\t_\t4\taux\t_\t_
8\tnot\tnot\tPART\tRB\t_\t4\tadvmod\t_\t_
9\twe\twe\tPRON\tPRP\t_\t4\tnsubj\t_\t_
10\t?\t?\tPUNCT\t.\t_\t4\tpunct\t_\t_

# sent_id = 2
# text = Gladly
1\tGladly\tgladly\tADV\tRB\t_\t0\troot\t_\t_
"""


@pytest.fixture
def treebank(tmp_path):
    path = tmp_path / "small.conllu"
    path.write_text(SENTENCES, encoding="utf-8")
    return path


def test_words_are_placed_in_the_text(treebank):
    first, second = read_conllu(treebank)
    assert [(first.text[start:end], tag) for start, end, tag in first.spans] == [
        ("We", "PRP"), ("can", "MD"), ("not", "RB"), ("unbelievably", "RB"), ("go", "VB"), (",", ","),
        # The forms "ca" and "not" do not spell what is written: the whole takes the first word's tag.
        ("can't", "MD"), ("we", "PRP"), ("?", "."),
    ]  # fmt: skip
    assert second == TaggedText("Gladly", ((0, 6, "RB"),))
    assert read_conllu(treebank, "upos", limit=1)[0].spans[0] == (0, 2, "PRON")


def test_unusable_files_are_refused_by_line(tmp_path, treebank):
    with pytest.raises(InputError, match=r"no such file: .*none\.conllu"):
        read_conllu(tmp_path / "none.conllu")
    for old, new, message in (
        ("# text = Gladly", "# note", r"line 17: the sentence has no '# text = '"),
        ("1\tGladly\tgladly", "1\tGladly gladly", r"line 19: expected 10 columns, got 9"),
        ("1\tGladly\t", "1\tSadly\t", r"line 19: the word 'Sadly' does not come next"),
    ):
        treebank.write_text(SENTENCES.replace(old, new), encoding="utf-8")
        with pytest.raises(InputError, match=message):
            read_conllu(treebank)
    treebank.write_text("\n\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"holds no sentences"):
        read_conllu(treebank)


def test_sub_words_take_the_tag_of_their_word(bundled, treebank):
    first, _ = read_conllu(treebank)
    names = bundled.tokenizer.convert_ids_to_tokens(bundled.tokenizer(first.text)["input_ids"])
    tags = token_tags([first], bundled.tokenizer)
    assert names[:3] == ["[CLS]", "we", "cannot"]
    # One token over two words takes the tag of the one it shares more with, the first when equal.
    assert tags[:3] == ["[CLS]", "PRP", "MD"]
    pieces = [tag for name, tag in zip(names, tags, strict=True) if name in ("un", "##bel", "##ie", "##va", "##bly")]
    assert len(pieces) >= 3
    assert set(pieces) == {"RB"}
    assert tags[-2:] == [".", "[SEP]"]


def test_pairs_and_tokens_outside_of_words(bundled):
    parts = [TaggedText("red sky", ((0, 3, "JJ"),)), TaggedText("sky", ((0, 3, "NN"),))]
    assert token_tags(parts, bundled.tokenizer) == ["[CLS]", "JJ", NO_WORD, "[SEP]", "NN", "[SEP]"]


def test_slow_tokenizers_are_refused():
    with pytest.raises(InputError, match=r"does not tell which characters.*use_fast=True"):
        token_tags([TaggedText("a", ())], types.SimpleNamespace(is_fast=False))


def test_spacy_pipelines_are_asked(monkeypatch):
    word = types.SimpleNamespace(idx=2, text="dog", tag_="NN", pos_="NOUN")
    assert spacy_tagger(lambda text: [word])("a dog") == [(2, 5, "NN")]
    assert spacy_tagger(lambda text: [word], fine=False)("a dog") == [(2, 5, "NOUN")]
    monkeypatch.setitem(sys.modules, "spacy", None)
    with pytest.raises(InputError, match=r"'en_core_web_sm' is not installed. Run: pip install spacy"):
        spacy_tagger()


def test_own_contribution_by_tag(bundled, treebank):
    texts = read_conllu(treebank)
    own = mixing(bundled, [text.text for text in texts], probes=6, rollouts=False).own()
    found = part_of_speech(own, texts, bundled.tokenizer)
    assert set(found["tag"]) == {"PRP", "MD", "RB", "VB", ",", ".", "[CLS]", "[SEP]"}
    last = found.filter(pl.col("layer") == 6)
    assert last["median"].is_sorted(descending=True)
    assert found["tokens"].sum() == len(own)
    clauses = own.filter((pl.col("layer") == 6) & (pl.col("token") == "[CLS]"))["contribution"]
    assert last.filter(pl.col("tag") == "[CLS]")["median"].item() == pytest.approx(clauses.median())
    plain = [text.text for text in texts]
    tagged = part_of_speech(own, plain, bundled.tokenizer, tagger={text.text: text.spans for text in texts}.get)
    assert tagged.equals(found)
    with pytest.raises(InputError, match=r"plain texts need a tagger"):
        part_of_speech(own, plain, bundled.tokenizer)
    with pytest.raises(InputError, match=r"text 0 has \d+ tokens in the result and 3 here"):
        part_of_speech(own, texts[::-1], bundled.tokenizer)


def test_a_real_treebank_is_placed_whole(data, bundled):
    texts = read_conllu(data / "ud_ewt" / "en_ewt-ud-test.conllu.xz", limit=200)
    assert len(texts) == 200
    tags = [tag for text in texts for tag in token_tags([text], bundled.tokenizer)]
    assert tags.count("NN") > 300
    assert tags.count(NO_WORD) == 0
