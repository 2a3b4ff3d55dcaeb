"""What the tasks of a study are given: the model by its path, the texts as they are; very many texts."""

from dataclasses import replace

import pytest

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.runs.corpus import Corpus
from identilens.studies.certify.study import CertifySettings, CertifyStudy
from identilens.studies.heads import joined, lens_reference
from identilens.studies.items import LazyItems, identities, read_items

TEXTS = [ids(6), ids(5, 1), ids(7, 2)]
SHORT = [ids(3), ids(4, 1)]


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("bert").double(), name="mine")


def test_a_model_made_in_memory_has_no_path(lens):
    with pytest.raises(InputError, match=r"load the model by its path, and this one was made in"):
        lens_reference(lens)


def test_a_model_of_a_folder_is_named_by_it(bundled, bundled_path):
    reference = lens_reference(bundled)
    assert reference.source == str(bundled_path)
    assert (reference.name, reference.gpus) == (bundled.name, 0)
    assert reference.restored().digest == bundled.digest
    named = replace(reference, name="other").restored()
    assert named.name == "other"


def test_a_study_sends_its_model_by_path_and_its_texts(bundled):
    texts = ["Nobody came."]
    study = CertifyStudy(bundled, texts, settings=CertifySettings(layers=(0,), heads=(0,)))
    study.inputs = (bundled, texts)
    reference, sent = study.sent()
    assert reference == lens_reference(bundled)
    assert sent is texts


def test_parts_of_very_many_texts_are_texts_and_give_the_same(lens):
    settings = CertifySettings(layers=(0,), heads=(0,), queries=(1,), tolerance=("0",))
    few = CertifyStudy(lens, SHORT, settings=settings)
    many = CertifyStudy(lens, Corpus(SHORT), settings=settings)
    assert (few.unit, many.unit) == ("rows", "texts")
    assert list(many.sizes()) == [1, 1]
    assert sum(few.sizes()) == 2
    schema = few.result_type.schema
    one = joined(schema, [few.run(part) for part in range(len(few.sizes()))])
    other = joined(schema, [many.run(part) for part in range(2)])
    for name in schema:
        assert one.tables[name].equals(other.tables[name]), name
    assert joined(schema, []).tables["table"].schema == schema["table"]


def test_items_of_very_many_texts(lens):
    items = read_items(lens, Corpus(TEXTS), None)
    assert isinstance(items, LazyItems)
    assert (len(items), items[-1].length, [one.length for one in items[:2]]) == (3, 7, [6, 5])
    count, digest = identities(items)
    assert count == 3
    assert digest == identities(read_items(lens, Corpus(TEXTS), None))[1]
    assert digest != identities(read_items(lens, Corpus(TEXTS[::-1]), None))[1]
    assert len(identities(read_items(lens, TEXTS, None))) == 3
