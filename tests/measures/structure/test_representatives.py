import numpy as np
import pytest

from identilens.errors import InputError
from identilens.measures.structure.representatives import best_clusters, choose_clusters, cluster

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
