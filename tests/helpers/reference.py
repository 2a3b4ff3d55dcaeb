"""Plain, slow definitions that every fast path must agree with."""

import torch

from helpers.heads import seen_of

EPS = 1.1920929e-07


def rank_svd(T):
    """Numerical rank by a full singular value decomposition of T in float64."""
    T = T.double()
    sigma = torch.linalg.svdvals(T)
    return int((sigma > max(T.shape) * EPS * sigma.max()).sum())


def projector_svd(T):
    """Orthogonal projector on col(T), from the left singular vectors above the tolerance."""
    T = T.double()
    left, sigma, _ = torch.linalg.svd(T, full_matrices=False)
    left = left[:, sigma > max(T.shape) * EPS * sigma.max()]
    return left @ left.mT


def with_sink(head, values):
    """Weights, values and seen keys of a head; a learned sink is one more key of value zero, which every row sees."""
    weights, seen = head.attention, seen_of(head.visible, head.attention)
    if not head.sink:
        return weights, values, seen
    rest = (1 - weights.sum(-1, keepdim=True)).clamp_min(0)
    weights, seen = (
        torch.cat([weights, rest], -1),
        torch.cat([seen, torch.ones_like(seen[:, :1])], -1),
    )
    return weights, torch.cat([values, torch.zeros_like(values[:1])]), seen


def effective_svd(weights, T, visible=None):
    """Effective attention of one head, a decomposition for every row where rows see different keys."""
    weights = weights.double()
    if visible is None:
        return weights @ projector_svd(T)
    effective = torch.zeros_like(weights)
    for row, seen in enumerate(visible):
        effective[row, seen] = weights[row, seen] @ projector_svd(T[seen])
    return effective
