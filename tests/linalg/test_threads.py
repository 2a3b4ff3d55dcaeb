"""Programs and spaces of rows have the same digits on any number of threads."""

import pytest
import torch

import identilens as idl
from identilens.linalg.threads import one_thread


@pytest.fixture
def threads():
    """Set the number of threads; restored afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_the_number_of_threads_comes_back_also_after_an_error(threads):
    threads(2)

    @one_thread()
    def fails():
        assert torch.get_num_threads() == 1
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        fails()
    assert torch.get_num_threads() == 2


def test_tables_are_equal_to_the_bit_on_one_and_two_threads(threads, bundled):
    text = idl.examples()[0]
    tables = []
    for count in (1, 2):
        threads(count)
        audit = idl.audit(bundled, text, layers=(2, 3), certain_rows=2, examples=0)
        row = idl.certify(bundled, text, layers=3, heads=7, queries=5, tolerance=0)
        tables.append((audit.table, audit.rows, audit.token_types, row.table))
    for one, two in zip(*tables, strict=True):
        assert one.equals(two)
