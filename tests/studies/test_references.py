"""What the tasks of a study are given: the model by its path, the texts as they are."""

from dataclasses import replace

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import InputError
from identilens.studies.certify.settings import CertifySettings
from identilens.studies.certify.study import CertifyStudy
from identilens.studies.heads import lens_reference

TEXTS = [ids(6), ids(5, 1), ids(7, 2)]
SHORT = [ids(3), ids(4, 1)]


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(build("bert").double(), name="mine")


def test_a_model_made_in_memory_has_no_path(lens):
    with pytest.raises(InputError, match="model"):
        lens_reference(lens)


def test_a_model_of_a_folder_is_named_by_it(bundled, bundled_path):
    reference = lens_reference(bundled)
    assert reference.source == str(bundled_path)
    assert (reference.name, reference.gpus) == (bundled.name, 0)
    assert reference.restored().digest == bundled.digest
    named = replace(reference, name="other", options={"dtype": "float64"}).restored()
    assert (named.name, named.dtype) == ("other", torch.float64)


def test_a_study_sends_its_model_by_path_and_its_texts(bundled):
    texts = ["Nobody came."]
    study = CertifyStudy(bundled, texts, settings=CertifySettings(layers=(0,), heads=(0,)))
    study.inputs = (bundled, texts)
    reference, sent = study.sent()
    assert reference == lens_reference(bundled)
    assert sent is texts
