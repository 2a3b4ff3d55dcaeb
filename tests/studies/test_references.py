"""What workers of a study are given: the model by its path or saved, few texts as they are, very many as a file."""

from dataclasses import replace

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids
from identilens.runs.corpus import Corpus, CorpusReference
from identilens.studies.certify.study import CertifySettings, CertifyStudy
from identilens.studies.heads import LensReference, joined, lens_reference
from identilens.studies.items import LazyItems, identities, read_items

TEXTS = [ids(6), ids(5, 1), ids(7, 2)]
SHORT = [ids(3), ids(4, 1)]


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("bert").double(), name="mine")


def test_a_model_without_a_path_is_saved_and_restored(lens, tmp_path):
    reference = lens_reference(lens, tmp_path)
    assert reference == LensReference(
        None, "mine",
        {"dtype": "float64", "device": "cpu", "revision": None, "attn_implementation": "sdpa",
         "trust_remote_code": False},
    )  # fmt: skip
    again = reference.restored(tmp_path)
    assert (again.name, again.digest, again.dtype) == ("mine", lens.digest, torch.float64)


def test_a_model_of_a_folder_is_named_by_it(bundled, bundled_path, tmp_path):
    reference = lens_reference(bundled, tmp_path)
    assert reference.source == str(bundled_path)
    assert reference.name == bundled.name
    assert list(tmp_path.iterdir()) == []
    assert reference.restored(tmp_path).digest == bundled.digest
    named = replace(reference, name="other").restored(tmp_path)
    assert named.name == "other"


def test_texts_travel_as_they_are_and_very_many_as_a_file(lens, tmp_path):
    settings = CertifySettings(layers=(0,), heads=(0,), queries=(1,))
    few = CertifyStudy(lens, TEXTS, settings=settings)
    few.inputs = (lens, TEXTS)
    reference, texts = few.for_workers(tmp_path)
    assert isinstance(reference, LensReference)
    assert texts is TEXTS
    many = CertifyStudy(lens, corpus := Corpus(TEXTS), settings=settings)
    many.inputs = (lens, corpus)
    _, held = many.for_workers(tmp_path)
    assert held == CorpusReference()
    restored = held.restored(tmp_path)
    assert [*restored] == TEXTS
    assert restored.known_lengths
    assert restored.digest == corpus.digest


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
