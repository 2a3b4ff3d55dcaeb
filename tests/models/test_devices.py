"""Every study, and every measure of rows, gives on another device what it gives on the processor."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
import torch
from torch.utils import backend_registration

from helpers.devices import MEASURES, WORK, differences

WITHOUT_DOUBLES = [
    "audit of gpt_oss", "audit", "certify", "certify a layer", "certify a prediction", "alternatives", "influence",
    "faithfulness of a decision", "mixing", "rollout", "inversion", "structure", "tokens", "answer", "explorer",
]  # fmt: skip
"""One of each study, and each outcome of a certificate."""
every_name = pytest.mark.parametrize("name", [*WORK, *MEASURES])


@pytest.fixture(scope="module")
def process():
    if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("this version of torch has no devices made in Python")
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@every_name
def test_numbers_do_not_depend_on_the_device(process, name):
    assert process.submit(differences, name).result() == []


@pytest.mark.parametrize("name", WITHOUT_DOUBLES)
def test_a_device_without_float64_computes_on_the_processor(process, name):
    assert process.submit(differences, name, doubles=False).result() == []


@pytest.mark.gpu
@every_name
def test_numbers_on_a_gpu_are_those_of_the_processor(name):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    assert differences(name, "cuda") == []
