"""Items of texts: all in memory, or read when they are used."""

import pytest

from identilens.errors import InputError
from identilens.runs.corpus import Corpus
from identilens.studies.items import ItemList, LazyItems, read_items, sample


class Numbers(LazyItems):
    """Items that are their own numbers."""

    def _one(self, number):
        return number


@pytest.mark.usefixtures("unchecked_shapes")
def test_very_many_texts_are_judged_by_the_first_ones():
    listed = ItemList(range(40))
    assert sample(listed) == listed
    assert sample(Numbers(None, listed, None)) == listed[:32]


def test_texts_of_a_corpus_that_are_too_long_are_named_before_one_is_used(bundled):
    texts = ["Nobody came."] * 40
    assert read_items(bundled, Corpus(texts), None)[39].length == 5
    texts[33], texts[35] = "word " * 600, ("word " * 300, "word " * 300)
    named = "2 of 40 texts are too long: text 33 has 602 tokens, text 35 has 603 tokens"
    with pytest.raises(InputError, match=named):
        read_items(bundled, Corpus(texts), None)
    assert read_items(bundled, Corpus(texts), 20)[33].length == 20
    checked = Corpus(texts)
    checked.known_lengths = True
    assert len(read_items(bundled, checked, None)) == 40
