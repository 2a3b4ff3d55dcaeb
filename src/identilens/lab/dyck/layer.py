"""Layers of Dyck transformers: attention through transformers' interface, and the three blocks around it."""

from collections.abc import Callable
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from identilens.lab.dyck.configuration import DyckConfig
from identilens.models.eager import eager_attention_forward


class FixedIdentity(nn.Linear):
    """The identity, in the place of an output projection; never trained."""

    def __init__(self, size: int) -> None:
        super().__init__(size, size, bias=False)
        self.weight.requires_grad_(False)


class UnitNorm(nn.Module):
    """LN(x) = P_⊥ x / max(‖P_⊥ x‖, C_LN), P_⊥ the projection off the vector of ones (Wen et al. 2023, Eq. 7)."""

    def __init__(self, constant: float) -> None:
        super().__init__()
        self.constant = constant

    def forward(self, x: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
        """Return vectors of norm one and mean zero; the norm is smaller for inputs shorter than C_LN."""
        centred = x - x.mean(-1, keepdim=True)
        length = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
        return centred / length.clamp_min(max(self.constant, torch.finfo(x.dtype).tiny))


class DyckAttention(nn.Module):
    """Causal self-attention, called through transformers' attention interface."""

    def __init__(self, config: DyckConfig, d_in: int, bias: bool) -> None:
        super().__init__()
        self.config = config
        self.heads, self.is_causal = config.num_attention_heads, True
        size = config.key_size or config.hidden_size // self.heads
        self.scaling = size**-0.5
        self.q_proj = nn.Linear(d_in, self.heads * size, bias=bias)
        self.k_proj = nn.Linear(d_in, self.heads * size, bias=bias)
        self.v_proj = nn.Linear(d_in, config.hidden_size, bias=bias)
        width = config.hidden_size
        self.o_proj = (
            nn.Linear(width, width, bias=bias)
            if config.has_output_projection
            else FixedIdentity(width)
        )

    def forward(
        self, hidden_states: Float[Tensor, "batch n d_in"], attention_mask: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch n d"], Tensor | None]:
        """Return the projected output, and the weights if the implementation returns them."""
        query, key, value = (
            projection(hidden_states).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        implementation = self.config._attn_implementation or "eager"
        attend: Callable[..., tuple[Tensor, Tensor | None]] = ALL_ATTENTION_FUNCTIONS.get_interface(
            implementation, eager_attention_forward
        )
        output, weights = attend(
            self, query, key, value, attention_mask, dropout=0.0, scaling=self.scaling
        )
        return self.o_proj(output.flatten(2)), weights


class DyckLayer(nn.Module):
    """One layer of the configured block.

    ``gpt``: y = x + Attn(LN x), y + MLP(LN y). ``paper``: g(LN(W_V X σ(C + X^T W_K^T W_Q X)) + X) (Wen et al. 2023,
    Eq. 6). ``minimal``: LN(W_V X' σ(C + X'^T W_K^T W_Q X')) with X' = LN X.
    """

    def __init__(self, config: DyckConfig, number: int) -> None:
        super().__init__()
        self.block = config.block
        # All hidden states have the same size: a minimal embedding fills the first coordinates, the others are zero.
        self.d_in = config.hidden_size if number else config.d_in
        self.attention = DyckAttention(config, self.d_in, bias=config.block == "gpt")
        if config.block != "paper":
            self.norm_1, self.norm_2 = nn.LayerNorm(self.d_in), nn.LayerNorm(config.hidden_size)
        if config.block == "gpt":
            self.up = nn.Linear(config.hidden_size, config.intermediate_size)
            self.down = nn.Linear(config.intermediate_size, config.hidden_size)
        elif config.block == "paper":
            self.norm = UnitNorm(config.norm_constant)
            self.residual = config.projection_residual
            widths = (config.projection_widths or [])[number]
            sizes = [config.hidden_size, *widths, config.hidden_size]
            self.projection = nn.Sequential(nn.Linear(sizes[0], sizes[1]))
            for d_in, d_out in pairwise(sizes[1:]):
                self.projection.extend([nn.ReLU(), nn.Linear(d_in, d_out)])

    def forward(
        self, hidden_states: Float[Tensor, "batch n d"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch n d"]:
        """Return the layer's output."""
        entering = hidden_states[..., : self.d_in]
        if self.block == "paper":
            mixed, _ = self.attention(entering, attention_mask)
            entering = self.norm(mixed) + hidden_states
            projected = self.projection(entering)
            return entering + projected if self.residual else projected
        mixed, _ = self.attention(self.norm_1(entering), attention_mask)
        if self.block == "minimal":
            return self.norm_2(mixed)
        hidden_states = hidden_states + mixed
        expanded = nn.functional.gelu(self.up(self.norm_2(hidden_states)))
        return hidden_states + self.down(expanded)
