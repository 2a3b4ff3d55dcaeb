"""ALTI: contributions of a layer's inputs to its attention block's output (Ferrando et al. 2022)."""

import torch
from jaxtyping import Float
from torch import Tensor


def alti_contributions(
    parts: Float[Tensor, "*query key d_model"], output: Float[Tensor, "*query d_model"]
) -> Float[Tensor, "*query key"]:
    """Return max(0, ‖y_i‖₁ − ‖y_i − T_ij‖₁), scaled so that each row sums to 1 (Ferrando et al. 2022, Eq. 9, 10).

    ``parts`` are T_ij, what input j adds to the output of the attention block at position i: through all heads, and
    through the residual connection if i = j, after the linear part of the norm if one follows. ``output`` is y_i. A row
    in which no part brings the output nearer is even over the parts that are not zero.

    Examples:
        >>> import torch
        >>> from identilens.measures.mixing import alti_contributions
        >>> alti_contributions(torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.tensor([3.0, 1.0]))
        tensor([0.5000, 0.5000])
    """
    size = output.abs().sum(-1)[..., None]
    near = (size - (output[..., None, :] - parts).abs().sum(-1)).clamp_min(0)
    total = near.sum(-1, keepdim=True)
    present = (parts.abs().sum(-1) > 0).to(near.dtype)
    even = present / present.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(total > 0, near / torch.where(total > 0, total, 1), even)


def alti_rollout(
    contributions: Float[Tensor, "layer query key"],
) -> Float[Tensor, "layer query key"]:
    """Return, for each layer, how much of each input token reaches each hidden token: C_l ⋯ C_1.

    The contributions contain the residual connection, so that none is added (unlike `attention_rollout`).

    Examples:
        >>> import torch
        >>> from identilens.measures.mixing.alti import alti_rollout
        >>> alti_rollout(torch.tensor([[[1.0, 0.0], [0.5, 0.5]]]).repeat(2, 1, 1))[-1]
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500]])
    """
    rolled = [contributions[0]]
    for layer in contributions[1:]:
        rolled.append(layer @ rolled[-1])
    return torch.stack(rolled)
