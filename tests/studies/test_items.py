"""Items of texts, which are read when they are used."""

import hashlib
from dataclasses import replace

import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import InputError, SettingError
from identilens.runs.provenance import Identity, provenance
from identilens.studies.certify.settings import CertifySettings
from identilens.studies.certify.study import CertifyStudy
from identilens.studies.heads import lens_reference
from identilens.studies.items import Items

TEXTS = [ids(6), ids(5, 1), ids(7, 2)]


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("bert"))


def test_items_are_those_of_a_list_wherever_the_texts_lie(lens):
    expected = lens.read(TEXTS)
    for texts in (TEXTS, expected):
        items = Items(lens, texts, None)
        assert [one.identity for one in items] == [one.identity for one in expected]
        assert (len(items), items[-1].length, [one.length for one in items[:2]]) == (3, 7, [6, 5])
        assert [*items.lengths] == [6, 5, 7]
        assert items.names == {name for one in expected for name in one.tokens["encoder"]}
        digests = [hashlib.sha256(one.identity.encode()).digest() for one in expected]
        assert [*items.digests] == digests
    read = [one.identity for one in expected]
    by_digest, by_string = (provenance("toy", Identity({}, one), {}) for one in (digests, read))
    assert by_digest["texts"] == by_string["texts"]
    assert [*Items(lens, TEXTS, 4).lengths] == [4, 4, 4]


def test_few_items_are_in_memory(lens, monkeypatch):
    monkeypatch.setattr("identilens.studies.items._KEPT", 2)
    read = []
    before = type(lens.reader).read_one

    def noted(reader, entry, number, most=None):
        read.append(number)
        return before(reader, entry, number, most)

    monkeypatch.setattr(type(lens.reader), "read_one", noted)
    items = Items(lens, TEXTS, None)
    assert read == [0, 1, 2]
    assert (items[2] is items[2], items[1] is items[1]) == (True, True)
    assert items[0].length == 6
    assert read == [0, 1, 2, 0]


def test_a_text_that_is_too_long_is_named_before_one_is_used(bundled):
    texts = ["Nobody came."] * 40
    assert Items(bundled, texts, None)[39].length == 5
    texts[33] = "word " * 600
    with pytest.raises(InputError, match="text 33 has 602 tokens, and the model has 512"):
        Items(bundled, texts, None)
    assert Items(bundled, texts, 20)[33].length == 20
    texts[7] = " "
    with pytest.raises(InputError, match="empty"):
        Items(bundled, texts, None)


def test_a_model_made_in_memory_has_no_path(lens):
    with pytest.raises(InputError, match="model"):
        lens_reference(lens)


def test_a_model_of_a_folder_is_named_by_it(bundled, bundled_path):
    reference = lens_reference(bundled)
    assert reference.options["model"] == str(bundled_path)
    assert (reference.name, reference.gpus) == (bundled.name, 0)
    assert reference.restored().digest == bundled.digest
    named = replace(
        reference, name="other", options={"model": bundled_path, "dtype": "float64"}
    ).restored()
    assert (named.name, named.dtype) == ("other", torch.float64)


def test_a_study_sends_its_model_by_path_and_its_texts(bundled):
    texts = ["Nobody came."]
    study = CertifyStudy(bundled, texts, settings=CertifySettings(layers=(0,), heads=(0,)))
    study.inputs = (bundled, texts)
    reference, sent = study.sent()
    assert reference == lens_reference(bundled)
    assert sent is texts


@pytest.fixture(scope="module")
def decoder():
    return idl.Lens(build("gpt2").double())


_OPTIONS = {
    "audit": {"effects": "none"},
    "influence": {"layers": 1},
    "mixing": {"layers": 1},
    "rollout": {},
}


@pytest.mark.parametrize(
    "name", ["alternatives", "audit", "certify", "influence", "mixing", "rollout"]
)
def test_a_text_without_the_row_that_is_asked_for_is_left_out(decoder, name):
    texts, study = [ids(12), ids(9, 1)], getattr(idl, name)
    options = {"queries": 10} | _OPTIONS.get(name, {"layers": 1, "heads": 0})
    found = study(decoder, texts, **options)
    table = "hidden_keys" if name == "influence" else "table"
    alone = getattr(study(decoder, texts[:1], **options), table)
    assert_frame_equal(getattr(found, table), alone, abs_tol=1e-9)
    assert found.summary().text


def test_a_word_of_the_source_names_no_row_of_a_decoder():
    batch = {"input_ids": torch.tensor([ids(7)]), "decoder_input_ids": torch.tensor([ids(3)])}
    options = {"queries": 5, "layers": 0, "heads": 0}
    lens = idl.Lens(build("t5"))
    assert set(idl.certify(lens, batch, **options).table["kind"]) == {"encoder"}
    with pytest.raises(SettingError, match="queries"):
        idl.certify(lens, batch, kind="cross", **options)
