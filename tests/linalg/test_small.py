"""Logits, factors and the messages of what does not fit, by hand."""

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.heads import doubles, normals, seeded
from identilens.linalg import ProjectedValues
from identilens.linalg.compact import OutputFactor
from identilens.linalg.decompositions import eigh
from identilens.linalg.factor import (
    factorise,
    inverse_cholesky,
    least_share,
)
from identilens.linalg.memory import LARGE, blocks, budget_on
from identilens.linalg.threads import one_thread


def drawn(*shape):
    return normals(seeded(sum(shape)), *shape)


def test_projections_and_bases_of_outputs():
    values = drawn(6, 2) @ drawn(2, 4)
    pseudo, rows = torch.linalg.pinv(values), drawn(3, 6)
    found = factorise(values, 1e-6)
    assert_close(rows @ found.basis @ found.basis.mT, rows @ values @ pseudo)
    visible = torch.ones(6, 6).tril().bool()
    visible[2] = visible[4]
    T = ProjectedValues.of(values)
    bases = T.output_bases(6, visible)
    assert bases[2].is_set_to(bases[4])
    for basis, seen in zip(bases, visible, strict=True):
        centred = torch.zeros_like(values)
        centred[seen] = values[seen] - values[seen].mean(0)
        assert_close(basis @ basis.mT, centred @ torch.linalg.pinv(centred, rtol=1e-9))
    first, second = T.output_bases(2)
    assert first.is_set_to(second)
    assert_close(first, bases[5])


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 4), (2, 3, 5)])
def test_a_factor_has_the_gram_matrix_of_the_projection(shape):
    projection = drawn(*shape)
    factor = OutputFactor.of(projection)
    rows, columns = shape[-2:]
    assert factor.lower.shape[-1] == min(rows, columns)
    assert factor.d_model == columns
    assert_close(factor.lower @ factor.lower.mT, projection @ projection.mT)
    if rows <= columns:
        assert_close(
            factor.inverse @ factor.lower, torch.eye(rows).double().expand(*shape[:-2], -1, -1)
        )
    else:
        assert bool(factor.inverse.isnan().all())
    values = drawn(*shape[:-2], 6, rows)
    compact, T = values @ factor.lower, values @ projection
    assert_close(compact @ compact.mT, T @ T.mT)


GRAM = doubles([[2.0, 1.0], [1.0, 3.0]])


def failing(monkeypatch, name, times):
    own, calls = getattr(torch.linalg, name), []

    def decompose(*args, **kwargs):
        calls.append(args[0].device)
        if len(calls) <= times:
            raise torch.linalg.LinAlgError("the algorithm failed to converge")
        return own(*args, **kwargs)

    monkeypatch.setattr(torch.linalg, name, decompose)
    return calls


def test_what_fails_on_a_device_is_made_on_the_processor(monkeypatch):
    expected = eigh(GRAM)
    calls = failing(monkeypatch, "eigh", 1)
    found = eigh(GRAM)
    assert calls == [torch.device("cpu")] * 2
    assert all(map(torch.equal, expected, found))


@pytest.mark.parametrize(("free", "expected"), [(80 * 2**30, 40 * 2**30), (2**20, LARGE)])
def test_a_large_computation_takes_half_of_what_a_device_has_free(monkeypatch, free, expected):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * 2**30))
    assert budget_on(torch.device("cuda", 0)) == expected
    assert budget_on(torch.device("cpu")) == LARGE


def test_blocks_cover_every_place_once():
    for count, size in ((0, 1), (5, 2**40), (1000, 2**20)):
        parts = blocks(count, size, torch.device("cpu"), multiple=3)
        assert [place for part in parts for place in range(count)[part]] == [*range(count)]
        assert all(len(range(count)[part]) <= max(3, 2**25 // size) for part in parts)


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


def test_tables_are_equal_to_the_bit_on_one_and_two_threads(threads, bundled, monkeypatch):
    # Programs in several parts.
    monkeypatch.setattr("identilens.linalg.memory.PROCESSOR_BYTES", 2**20)
    text = idl.examples()[0]
    tables = []
    for count in (1, 2):
        threads(count)
        audit = idl.audit(bundled, text, layers=(2, 3), certain_rows=2, examples=0)
        row = idl.certify(bundled, text, layers=3, heads=7, queries=5, tolerance=0)
        tables.append((audit.table, audit.rows, row.table))
    assert all(map(pl.DataFrame.equals, *tables))


@pytest.mark.parametrize("tolerance", [1e-6, 1e-3])
@pytest.mark.parametrize(("share", "certified"), [(0.5, False), (2.0, True)])
def test_a_certificate_is_given_just_above_the_limit_and_not_below(tolerance, share, certified):
    least = least_share(tolerance)
    assert least == pytest.approx(1e-6) or tolerance < 1e-3
    gram = torch.diag(doubles([1.0, 0.5, 0.0]))
    gram[2, 2] = share * least * 1.5
    assert bool(inverse_cholesky(gram[None], tolerance)[2]) == certified


def test_ranks_with_and_without_a_certificate_are_those_of_the_singular_values():
    generator = seeded()
    left, right = (torch.linalg.qr(normals(generator, 8, 8))[0] for _ in range(2))
    for small, rank in ((1e-2, 8), (1e-5, 8), (1e-7, 7), (0.0, 7)):
        sigma = torch.linspace(1, 2, 8, dtype=torch.float64)
        sigma[0] = small
        assert int(factorise(left @ torch.diag(sigma) @ right, 1e-6).rank) == rank


def test_each_matrix_of_a_batch_may_have_its_own_tolerance():
    generator = seeded(1)
    values = normals(generator, 1, 30, 5).repeat(3, 1, 1)
    values[:, :, 0] *= 1e-4
    found = factorise(values, doubles([1e-6, 1e-3, 1e-5]))
    assert found.rank.tolist() == [5, 4, 5]
    for index, tolerance in enumerate((1e-6, 1e-3, 1e-5)):
        alone = factorise(values[index], tolerance)
        torch.testing.assert_close(
            found.basis[index] @ found.coordinates[index].mT, alone.basis @ alone.coordinates.mT
        )
