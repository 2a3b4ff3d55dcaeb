"""Every study, and every measure of rows, gives on another device what it gives on the processor."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest
from torch.utils import backend_registration

from helpers.devices import MEASURES, WORK, differences

if not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"):
    pytest.skip("this version of torch has no devices made in Python", allow_module_level=True)


@pytest.fixture(scope="module")
def process():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool


@pytest.mark.parametrize("name", [*WORK, *MEASURES])
def test_numbers_do_not_depend_on_the_device(process, name):
    assert process.submit(differences, name).result() == []
