"""Representative texts: k-means in embedding space (structure2025, III.B.1)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from identilens.errors import InputError

CANDIDATES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of clusters to try by default."""
_INITIAL = 4


@dataclass(frozen=True)
class Representatives:
    """Texts that represent a corpus.

    Attributes:
        members: Row of the text nearest to each centroid; clusters in order of size, largest first.
        sizes: Number of texts in each cluster.
        silhouette: Mean silhouette of the clustering, in [−1, 1]; NaN where it is not defined.
    """

    members: Int[np.ndarray, " cluster"]
    sizes: Int[np.ndarray, " cluster"]
    silhouette: float


def cluster(
    embeddings: Float[np.ndarray, "text d"], clusters: int, seed: int = 0
) -> Representatives:
    """Return the texts nearest to the centroids of k-means.

    A centroid is a mean, not a text, so it has no attention; the nearest text has.

    Raises:
        InputError: For fewer distinct texts than clusters.
    """
    # Most uses of the library need no clusters, and these imports need nearly a second.
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    distinct = len(np.unique(embeddings, axis=0))
    if not 1 <= clusters <= distinct:
        most = f"the number of distinct texts, {distinct}"
        raise InputError(f"expected a number of clusters from 1 to {most}; got {clusters}.")
    fitted = KMeans(clusters, n_init=_INITIAL, random_state=seed).fit(embeddings)  # pyright: ignore[reportArgumentType] n_init takes numbers too
    labels = np.asarray(fitted.labels_)
    distances = np.linalg.norm(embeddings - fitted.cluster_centers_[labels], axis=1)
    sizes = np.bincount(labels, minlength=clusters)
    order = np.argsort(-sizes, kind="stable")
    members = [
        np.flatnonzero(labels == label)[distances[labels == label].argmin()] for label in order
    ]
    score = (
        float(silhouette_score(embeddings, labels))
        if 1 < clusters < len(embeddings)
        else float("nan")
    )
    return Representatives(np.array(members), sizes[order], score)


def choose_clusters(
    embeddings: Float[np.ndarray, "text d"], clusters: int | None = None, seed: int = 0
) -> dict[int, Representatives]:
    """Return clusterings with increasing numbers of clusters, `CANDIDATES` and ``clusters``, for the choice of W.

    Raises:
        InputError: For fewer than two distinct texts, or a number that they do not allow.
    """
    distinct = len(np.unique(embeddings, axis=0))
    if distinct < 2:
        raise InputError(
            f"representatives need at least 2 distinct texts; got {distinct}. Give more texts."
        )
    most = min(distinct, max(2, len(embeddings) // 2))
    numbers = {number for number in CANDIDATES if number <= most} | (
        {clusters} if clusters is not None else set()
    )
    return {number: cluster(embeddings, number, seed) for number in sorted(numbers)}


def best_clusters(clusterings: dict[int, Representatives]) -> int:
    """Return the number of clusters with the largest silhouette; on ties, the smallest number."""
    scores = {
        number: chosen.silhouette
        for number, chosen in clusterings.items()
        if np.isfinite(chosen.silhouette)
    }
    return max(scores, key=lambda number: (scores[number], -number)) if scores else min(clusterings)
