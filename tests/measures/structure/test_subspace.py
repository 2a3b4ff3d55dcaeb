import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from helpers.heads import doubles, normals, random_weights, seeded, seeds
from identilens.errors import InputError
from identilens.linalg import ProjectedValues
from identilens.measures.structure import against_subspace
from identilens.measures.structure.representatives import best_clusters, choose_clusters, cluster
from identilens.measures.structure.subspace import Subspace, column_projector, subspace_of


def texts(seed, count, n=10, rank=2, heads=2):
    generator = seeded(seed)
    return [normals(generator, heads, n, rank) for _ in range(count)]


def spanned(tensors, d_model=16):
    gram = sum(column_projector(ProjectedValues(tensor, d_model))[0] for tensor in tensors)
    return subspace_of(gram, len(tensors), d_model)


@given(seed=seeds, count=st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_r_is_the_span_of_all_columns(seed, count):
    given_texts = texts(seed, count)
    space = spanned(given_texts)
    stacked = torch.cat(given_texts, -1)
    assert space.dimension.tolist() == [min(10, 2 * count)] * 2
    assert space.dimension.tolist() == torch.linalg.matrix_rank(stacked).tolist()
    for head in range(2):
        basis = space.basis(head)
        assert_close(basis.mT @ basis, torch.eye(basis.shape[1]).double())
        assert_close(basis @ basis.mT @ stacked[head], stacked[head])
    assert_close(space.eigenvalues.sum(-1), torch.full((2,), 2.0, dtype=torch.float64))


def test_a_direction_of_every_text_stands_out():
    """The weighted version: R is full, but one direction is in all texts and the others in one of them each."""
    common = torch.nn.functional.normalize(torch.ones(1, 10, 1).double(), dim=1)
    many = [torch.cat([common, one[:1, :, :1]], -1) for one in texts(2, 40)]
    space = spanned(many)
    assert space.dimension.tolist() == [10]
    assert space.dimension_at(0.9).tolist() == [1]
    assert_close(space.basis(0, 0.9).abs(), common[0])
    assert float(space.eigenvalues[0, 0]) == pytest.approx(1)
    assert float(space.eigenvalues[0, 1]) < 0.5
    assert 1 < int(space.effective_dimension(0.95)) <= 10
    assert int(space.effective_dimension(0.4)) == 1


def test_a_new_text_lies_partly_outside():
    space = spanned(texts(7, 2))
    weights = torch.stack([random_weights(seed, 10, 2)[0] for seed in (1, 2)])
    column, _ = column_projector(ProjectedValues(texts(8, 1)[0], 16))
    found = against_subspace(weights, column, space.projector())
    assert bool((found.outside > 0.1).all())
    orthogonal = (
        torch.linalg.qr(torch.cat([space.basis(0), texts(9, 1)[0][0]], 1))
        .Q[:, 4:]
        .expand(2, -1, -1)
    )
    column, _ = column_projector(ProjectedValues(orthogonal.contiguous(), 16))
    assert float(against_subspace(weights, column, space.projector()).outside[0]) == pytest.approx(
        1
    )


def test_directions_are_chosen_by_their_share_of_texts():
    values = doubles([[1.0, 0.9, 0.06, 0.04, 0.0]])
    held = Subspace(values, torch.eye(5).double()[None], torch.tensor([4]), 1e-9, 50)
    for share, kept in ((0.0, 4), (0.04, 4), (0.05, 3), (0.9, 2), (1.0, 1)):
        assert held.basis(0, share).shape == (5, kept)
        assert held.dimension_at(share).tolist() == [kept]
        assert float(held.projector(share)[0].trace()) == kept
    assert held.basis(0).shape == (5, 4)
    assert torch.equal(held.projector(), held.projector(0.0))
    assert held.projector()[0].diagonal().tolist() == [1, 1, 1, 1, 0]
    assert held.projector(0.5)[0].diagonal().tolist() == [1, 1, 0, 0, 0]
    # 1.9 of 2 lie in the first two, exactly 95 %.
    assert held.effective_dimension().tolist() == [2]
    assert held.effective_dimension(0.96).tolist() == [3]
    assert held.effective_dimension(0.5).tolist() == [1]
    assert held.effective_dimension(1.0).tolist() == [4]


CENTRES = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0]])


def blobs(sizes=(12, 8, 5)):
    generator = np.random.default_rng(0)
    return np.concatenate(
        [
            centre + generator.normal(0, 0.5, (size, 2))
            for centre, size in zip(CENTRES, sizes, strict=True)
        ]
    )


def test_the_nearest_real_texts_stand_for_their_clusters():
    points = blobs()
    found = cluster(points, 3)
    assert found.sizes.tolist() == [12, 8, 5]
    assert [int(member) for member in found.members] == [
        start + int(np.linalg.norm(points[start:end] - points[start:end].mean(0), axis=1).argmin())
        for start, end in ((0, 12), (12, 20), (20, 25))
    ]
    assert found.silhouette > 0.8


def test_the_silhouette_finds_the_number():
    found = choose_clusters(blobs())
    assert best_clusters(found) == 3
    assert sorted(found) == [2, 3, 4, 6, 8, 12]
    assert 5 in choose_clusters(blobs(), 5)


def test_numbers_of_clusters_end_at_half_of_the_texts():
    texts = np.arange(13.0)[:, None]
    assert list(choose_clusters(texts)) == [2, 3, 4, 6]
    assert list(choose_clusters(texts[:12], 5)) == [2, 3, 4, 5, 6]
    assert list(choose_clusters(texts[:2])) == [2]
    assert list(choose_clusters(texts, 13)) == [2, 3, 4, 6, 13]
    assert np.isnan(cluster(texts[:2], 2).silhouette)
    assert np.isnan(cluster(texts, 1).silhouette)
    with pytest.raises(InputError, match="distinct"):
        cluster(np.ones((3, 2)), 2)
    with pytest.raises(InputError, match="distinct"):
        choose_clusters(np.ones((3, 2)))
