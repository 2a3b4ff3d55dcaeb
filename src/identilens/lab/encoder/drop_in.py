"""An identifiable layer that can replace `torch.nn.TransformerEncoderLayer`."""

from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from identilens.errors import InputError
from identilens.lab.encoder.configuration import Heads, IdentifiableEncoderConfig
from identilens.lab.encoder.layer import IdentifiableEncoderLayer, initialise


class IdentifiableTransformerLayer(nn.Module):
    """Replaces `torch.nn.TransformerEncoderLayer`, also inside `TransformerEncoder`, with the arguments it supports.

    Post-norm, ReLU, batch first only: a layer of Bhardwaj et al. 2021, section 4. Queries and keys have size ``d_k``,
    by default d_model / nhead. Values have size ``d_v``; the default depends on ``heads``.

    Raises:
        InputError: For sizes that do not fit together, or ``batch_first=False``.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = True,
        *,
        heads: Heads = "add",
        d_k: int | None = None,
        d_v: int | None = None,
    ) -> None:
        super().__init__()
        if not batch_first:
            raise InputError(
                "the layer takes [batch, position, d_model]. Pass batch_first=True and such inputs."
            )
        config = IdentifiableEncoderConfig(
            heads=heads,
            d_k=max(1, d_model // nhead) if d_k is None else d_k,
            d_v=d_v,
            hidden_size=d_model,
            num_attention_heads=nhead,
            intermediate_size=dim_feedforward,
            dropout=dropout,
            layer_norm_eps=layer_norm_eps,
        )
        config._attn_implementation = "sdpa"
        self.layer = IdentifiableEncoderLayer(config)
        self.layer.apply(partial(initialise, embedding_std=config.initializer_std))

    @property
    def self_attn(self) -> nn.Module:
        """The attention module, under the name that `torch.nn.TransformerEncoder` uses."""
        return self.layer.attention

    def forward(
        self,
        src: Float[Tensor, "batch n d_model"],
        src_mask: Bool[Tensor, "..."] | Float[Tensor, "..."] | None = None,
        src_key_padding_mask: Bool[Tensor, "batch n"] | Float[Tensor, "batch n"] | None = None,
        is_causal: bool = False,
    ) -> Float[Tensor, "batch n d_model"]:
        """Return the output of the layer; masks as in torch: True hides a key, floats are added to the logits.

        ``src_mask`` is [n, n] or [batch·heads, n, n]. ``is_causal`` is a hint, as in torch, that the mask is causal.

        Raises:
            InputError: For ``is_causal`` without a mask.
        """
        if is_causal and src_mask is None:
            raise InputError("is_causal is a hint about src_mask. Pass the mask too.")
        mask = None
        if src_mask is not None:
            mask = _additive(src_mask, src.dtype)
            mask = mask[None, None] if mask.ndim == 2 else mask.unflatten(0, (len(src), -1))
        if src_key_padding_mask is not None:
            padding = _additive(src_key_padding_mask, src.dtype)[:, None, None]
            mask = padding if mask is None else mask + padding
        if mask is not None:
            mask = mask.clamp_min(torch.finfo(src.dtype).min)
        return self.layer(src, mask)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        mask, torch.finfo(dtype).min
    )
