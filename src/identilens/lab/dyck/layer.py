"""Layers of Dyck transformers: attention through transformers' interface, and the three blocks around it."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.lab.attention import InterfaceAttention
from identilens.lab.dyck.configuration import DyckConfig


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
        return nn.functional.normalize(
            centred, dim=-1, eps=max(self.constant, torch.finfo(x.dtype).tiny)
        )


class DyckAttention(InterfaceAttention):
    """Causal self-attention, called through transformers' attention interface."""

    def __init__(self, config: DyckConfig) -> None:
        size, heads, width = config.key_size or 0, config.num_attention_heads, config.hidden_size
        super().__init__(config, size, is_causal=True)
        gpt = config.block == "gpt"
        self.q_proj, self.k_proj, self.v_proj = (
            nn.Linear(config.d_in, out, bias=gpt) for out in (heads * size, heads * size, width)
        )
        # Eq. 6 has one head and no W_O.
        self.o_proj = (
            nn.Linear(width, width, bias=gpt) if gpt or heads > 1 else FixedIdentity(width)
        )

    def forward(
        self, hidden_states: Float[Tensor, "batch n d_in"], attention_mask: Tensor | None = None
    ) -> tuple[Float[Tensor, "batch n d"], Tensor | None]:
        """Return the projected output, and the weights if the implementation returns them."""
        output, weights = self.attend(hidden_states, hidden_states, attention_mask)
        return self.o_proj(output.flatten(2)), weights


class DyckLayer(nn.Module):
    """One layer of the configured block.

    ``gpt``: y = x + Attn(LN x), y + MLP(LN y). ``paper``: g(LN(W_V X σ(C + X^T W_K^T W_Q X)) + X) (Wen et al. 2023,
    Eq. 6). ``minimal``: LN(W_V X' σ(C + X'^T W_K^T W_Q X')) with X' = LN X.
    """

    def __init__(self, config: DyckConfig, number: int) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        # All hidden states have the same size: a minimal embedding fills the first coordinates, the others are zero.
        self.d_in = config.d_in
        self.attention = DyckAttention(config)
        paper = config.block == "paper"
        self.norm_1 = nn.Identity() if paper else nn.LayerNorm(self.d_in)
        self.norm_2 = UnitNorm(config.norm_constant) if paper else nn.LayerNorm(width)
        if config.block == "gpt":
            self.up = nn.Linear(width, config.intermediate_size)
            self.down = nn.Linear(config.intermediate_size, width)
        elif paper:
            sizes = [width, *(config.projection_widths or [])[number], width]
            parts = [(nn.Linear(*ends), nn.ReLU()) for ends in pairwise(sizes)]
            self.projection = nn.Sequential(*sum(parts, ())[:-1])

    def forward(
        self, hidden_states: Float[Tensor, "batch n d"], attention_mask: Tensor | None = None
    ) -> Float[Tensor, "batch n d"]:
        """Return the layer's output."""
        mixed = self.attention(self.norm_1(hidden_states[..., : self.d_in]), attention_mask)[0]
        if self.config.block == "gpt":
            hidden_states = hidden_states + mixed
            expanded = nn.functional.gelu(self.up(self.norm_2(hidden_states)))
            return hidden_states + self.down(expanded)
        mixed = self.norm_2(mixed)
        if self.config.block == "minimal":
            return mixed
        mixed = mixed + hidden_states
        projected = self.projection(mixed)
        return mixed + projected if self.config.projection_residual else projected
