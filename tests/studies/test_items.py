"""Items of texts: all in memory, or read when they are used."""

import pytest

from identilens.studies.items import ItemList, LazyItems, sample


class Numbers(LazyItems):
    """Items that are their own numbers."""

    def _one(self, number):
        return number


@pytest.mark.usefixtures("unchecked_shapes")
def test_very_many_texts_are_judged_by_the_first_ones():
    listed = ItemList(range(40))
    assert sample(listed) == listed
    assert sample(Numbers(None, listed, None)) == listed[:32]
