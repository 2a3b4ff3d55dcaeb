"""What the models of the laboratory have in common: attention through transformers' interface, and positions."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.models.eager import eager_attention_forward


class InterfaceAttention(nn.Module):
    """Heads between the maps q_proj, k_proj and v_proj and an output projection, through transformers' interface."""

    q_proj: nn.Linear
    k_proj: nn.Linear
    v_proj: nn.Linear

    def __init__(self, config: Any, key_size: int, is_causal: bool) -> None:
        super().__init__()
        self.config, self.is_causal, self.scaling = config, is_causal, key_size**-0.5

    def attend(
        self,
        queries: Float[Tensor, "batch n d"],
        states: Float[Tensor, "batch m d"],
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Float[Tensor, "batch n head d_v"], Tensor | None]:
        """Return the head outputs and, if the implementation has any, the weights."""
        function = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation or "eager", eager_attention_forward
        )
        heads = (
            mapped.unflatten(-1, (self.config.num_attention_heads, -1)).transpose(1, 2)
            for mapped in (self.q_proj(queries), self.k_proj(states), self.v_proj(states))
        )
        return function(self, *heads, attention_mask, scaling=self.scaling, **options)


def positions(
    states: Float[Tensor, "batch n d"], attention_mask: Tensor | None
) -> Int[Tensor, "..."]:
    """Count positions from each text's first token, so that padding on the left does not shift them."""
    if attention_mask is None or attention_mask.ndim != 2:
        return torch.arange(states.shape[1], device=states.device)[None]
    return (attention_mask.long().cumsum(-1) - 1).clamp_min(0)
