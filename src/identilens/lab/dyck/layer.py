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
        length = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
        return centred / length.clamp_min(max(self.constant, torch.finfo(x.dtype).tiny))


class DyckAttention(InterfaceAttention):
    """Causal self-attention, called through transformers' attention interface."""

    def __init__(self, config: DyckConfig, d_in: int, bias: bool) -> None:
        heads, size = config.num_attention_heads, config.key_size or 0
        super().__init__(config, size, is_causal=True)
        self.q_proj = nn.Linear(d_in, heads * size, bias=bias)
        self.k_proj = nn.Linear(d_in, heads * size, bias=bias)
        self.v_proj = nn.Linear(d_in, config.hidden_size, bias=bias)
        width = config.hidden_size
        # Eq. 6 has one head and no W_O.
        projected = config.block == "gpt" or heads > 1
        self.o_proj = nn.Linear(width, width, bias=bias) if projected else FixedIdentity(width)

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
            parts = [(nn.Linear(*ends), nn.ReLU()) for ends in pairwise(sizes)]
            self.projection = nn.Sequential(*sum(parts, ())[:-1])

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
