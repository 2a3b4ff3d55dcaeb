"""Second-order cones {u : u_0 >= ‖u_1, u_2, …‖} of many programs at once: their algebra, and the scaling of a pair.

Vandenberghe, The CVXOPT linear and quadratic cone program solvers, 2010, sections 2 and 4.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Vectors = Float[Tensor, "*program k"]


def determinant(u: Vectors) -> Float[Tensor, "*program 1"]:
    """Return u_0² − ‖u_1, …‖², positive inside of the cone."""
    return u[..., :1].square() - u[..., 1:].square().sum(-1, keepdim=True)


def product(u: Vectors, v: Vectors) -> Vectors:
    """Return u ∘ v = (u·v, u_0 v_1 + v_0 u_1, …)."""
    return torch.cat(
        [(u * v).sum(-1, keepdim=True), u[..., :1] * v[..., 1:] + v[..., :1] * u[..., 1:]], -1
    )


def quotient(u: Vectors, v: Vectors) -> Vectors:
    """Return x with u ∘ x = v."""
    inner = (u[..., 1:] * v[..., 1:]).sum(-1, keepdim=True)
    first = (u[..., :1] * v[..., :1] - inner) / determinant(u)
    return torch.cat([first, (v[..., 1:] - first * u[..., 1:]) / u[..., :1]], -1)


def room(u: Vectors, move: Vectors) -> Float[Tensor, "*program 1"]:
    """Return how far u can be moved inside of the cone."""
    square, inner = determinant(move), u[..., :1] * move[..., :1]
    inner = inner - (u[..., 1:] * move[..., 1:]).sum(-1, keepdim=True)
    inside = determinant(u).clamp_min(0.0)
    root = (inner.square() - square * inside).clamp_min(0.0).sqrt() - inner
    return torch.where(root > 0, inside / root, torch.inf)


@dataclass(frozen=True)
class Scaling:
    """The symmetric W with W z = W⁻¹ v for v and z inside of the cone (Nesterov and Todd).

    Attributes:
        point: w, on the hyperboloid w_0² − ‖w_1, …‖² = 1.
        size: η, with W² = η² (2 w wᵀ − J), J = diag(1, −1, −1, …).
    """

    point: Vectors
    size: Float[Tensor, "*program 1"]

    @classmethod
    def between(cls, v: Vectors, z: Vectors) -> "Scaling":
        """Return the scaling of two vectors."""
        lengths = [determinant(part).clamp_min(torch.finfo(v.dtype).tiny).sqrt() for part in (v, z)]
        v, z = v / lengths[0], z / lengths[1]
        cosine = ((1 + (v * z).sum(-1, keepdim=True)) / 2).sqrt()
        reflected = torch.cat([z[..., :1], -z[..., 1:]], -1)
        return cls((v + reflected) / (2 * cosine), (lengths[0] / lengths[1]).sqrt())

    def apply(self, u: Vectors, sign: float = 1.0) -> Vectors:
        """Return W u, or W⁻¹ u for the sign −1."""
        first, rest = self.point[..., :1], sign * self.point[..., 1:]
        inner = (rest * u[..., 1:]).sum(-1, keepdim=True)
        turned = u[..., 1:] + rest * (u[..., :1] + inner / (1 + first))
        return self.size**sign * torch.cat([first * u[..., :1] + inner, turned], -1)
