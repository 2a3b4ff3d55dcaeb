"""Tags from a treebank, carried over to sub-words by characters."""

import pytest

from helpers.treebanks import SENTENCES
from identilens.runs.conllu import TaggedText, Word, read_conllu
from identilens.studies.mixing.tagging import NO_WORD, tag_tokens


@pytest.fixture(scope="module")
def sentences(tmp_path_factory):
    path = tmp_path_factory.mktemp("treebank") / "small.conllu"
    path.write_text(SENTENCES, encoding="utf-8")
    return read_conllu(path)


def test_sub_words_take_the_tag_of_their_word(bundled, sentences):
    names = bundled.tokenizer.convert_ids_to_tokens(bundled.tokenizer(sentences[0])["input_ids"])
    tags = tag_tokens(sentences[:1], bundled.tokenizer)["tag"].to_list()
    assert names[:3] == ["[CLS]", "we", "cannot"]
    # One token over two words takes the tag of the one it shares more with, the first when equal.
    assert tags[:3] == ["[CLS]", "PRP", "MD"]
    pieces = [
        tag
        for name, tag in zip(names, tags, strict=True)
        if name in ("un", "##bel", "##ie", "##va", "##bly")
    ]
    assert len(pieces) >= 3
    assert set(pieces) == {"RB"}
    assert tags[-2:] == [".", "[SEP]"]


def test_pairs_and_tokens_outside_of_words(bundled):
    pair = (
        TaggedText("red sky", [Word(0, 3, "JJ", "ADJ")]),
        TaggedText("sky", [Word(0, 3, "NN", "NOUN")]),
    )
    found = tag_tokens([pair], bundled.tokenizer, tags="upos")
    assert found["tag"].to_list() == ["[CLS]", "ADJ", NO_WORD, "[SEP]", "NOUN", "[SEP]"]
