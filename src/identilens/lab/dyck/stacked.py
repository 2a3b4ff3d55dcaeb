"""Many Dyck transformers of one configuration at once: their parameters stacked, their logits in a few large products.

`torch.func` maps the models' own forward pass over their stacked parameters (`mapped_logits`), for any model. For
models with one head and the usual norms, `stacked_logits` computes the same in its own forward pass, because a whole
training then needs at most two thirds of the time (`benchmarks/dyck.py` measures it). It avoids repeated work of the
mapped pass:

- Gains of norms are folded into the weights after them, and biases are added within the products.
- The logits of a head use W_Kᵀ W_Q, and W_O W_V is applied after the mixing: keys and values are not projected.
- Each position has one of a few input vectors (a token, or a type and depth): the first layer projects only these.
  Without positions, with c_u visible keys of kind u and their logits l_u, its softmax is softmax_u(l_u + log c_u): no
  n x n map is needed.
- The last layer computes only the requested positions.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap
from torch.nn import functional

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.embeddings import symbol_ids
from identilens.lab.dyck.modeling import DyckForCausalLM

Parameters = Mapping[str, Tensor]
"""Parameters and buffers by the names of `DyckForCausalLM`, each with a first axis for the members."""

_Linear = tuple[Tensor, Tensor | None]


def stack_parameters(
    models: Sequence[DyckForCausalLM], device: str | torch.device = "cpu"
) -> dict[str, Tensor]:
    """Return the models' stacked parameters, ready for training, and their tables of a minimal first layer."""
    parameters, buffers = stack_module_state(list(models))
    state = parameters | buffers
    return {
        name: value.detach().to(device).requires_grad_(value.requires_grad)
        for name, value in state.items()
    }


@torch.no_grad()
def unstack_parameters(parameters: Parameters, models: Sequence[DyckForCausalLM]) -> None:
    """Copy each member's parameters into its model."""
    for member, model in enumerate(models):
        for name, parameter in model.named_parameters():
            parameter.copy_(parameters[name][member])


def stacked_logits(
    config: DyckConfig,
    parameters: Parameters,
    tokens: Int[Tensor, "member batch n"],
    rows: Int[Tensor, "member batch row"] | None = None,
) -> Float[Tensor, "member batch row token"]:
    """Return next-token logits of every member, equal to those of its `DyckForCausalLM` up to rounding.

    Sequences begin with a start token and have no padding; ``rows`` are the positions whose logits are returned.
    """
    if config.num_attention_heads > 1 or config.block == "paper":
        return mapped_logits(config, parameters, tokens, rows)
    rows = (
        torch.arange(tokens.shape[2], device=tokens.device).expand_as(tokens)
        if rows is None
        else rows
    )
    return _Pass(config, parameters, tokens, rows).logits().unflatten(1, rows.shape[1:])


def mapped_logits(
    config: DyckConfig,
    parameters: Parameters,
    tokens: Int[Tensor, "member batch n"],
    rows: Int[Tensor, "member batch row"] | None = None,
) -> Float[Tensor, "member batch row token"]:
    """Return the result of `stacked_logits` for any model, computed by the forward pass of `DyckForCausalLM`."""
    with torch.device("meta"):
        model = DyckForCausalLM(deepcopy(config))
    # torch cannot map fused attention over members: it would run a loop.
    model.set_attn_implementation("eager")
    logits = vmap(lambda state, ids: functional_call(model, state, (ids,)).logits)(
        dict(parameters), tokens
    )
    return (
        logits
        if rows is None
        else logits.gather(2, rows[..., None].expand(-1, -1, -1, logits.shape[-1]))
    )


@dataclass(frozen=True, eq=False)
class _Pass:
    config: DyckConfig
    parameters: Parameters
    tokens: Int[Tensor, "member batch n"]
    rows: Int[Tensor, "member batch row"]

    def logits(self) -> Float[Tensor, "member rows token"]:
        last = self.config.num_hidden_layers - 1
        hidden = self.first_layer(last == 0)
        for number in range(1, last + 1):
            hidden = self.layer(number, hidden, number == last)
        norm = "dyck.norm" if self.config.block == "gpt" else f"dyck.layers.{last}.norm_2"
        return _linear(self.normal(norm, hidden), self.folded(norm, "lm_head"))

    def inputs(self) -> tuple[Float[Tensor, "member kind d_in"], Int[Tensor, "member batch n"]]:
        """Return the different input vectors of the first layer, and the number of the vector at each position."""
        if self.config.first_layer != "learned":
            table = self.parameters["dyck.embeddings.symbol_table"][..., : self.config.d_in]
            return table, symbol_ids(self.config.language, self.tokens)
        table = self.parameters["dyck.embeddings.tokens.weight"]
        if self.config.positions == "none":
            return table, self.tokens
        places = torch.arange(self.tokens.shape[2], device=table.device)
        direction = self.parameters["dyck.embeddings.direction"][:, None, None]
        moved = (places / self.config.position_scale).to(table)[:, None] * direction
        return (table[:, :, None] + moved).flatten(1, 2), self.tokens * len(places) + places

    def first_layer(self, narrow: bool) -> Float[Tensor, "member row d"]:
        table, kinds = self.inputs()
        here = kinds.gather(2, self.rows) if narrow else kinds
        x = self.normal("dyck.layers.0.norm_1", table)
        asking, values = (_linear(x, part) for part in self.joined(0))
        if self.config.positions == "none":
            counts = (
                (kinds[..., None] == torch.arange(table.shape[1], device=x.device))
                .to(x.dtype)
                .cumsum(2)
            )
            counts = self.narrowed(counts.flatten(1, 2)) if narrow else counts.flatten(1, 2)
            logits = _look_up(torch.bmm(asking, x.mT), here) + counts.log()
            mixed = torch.bmm(torch.softmax(logits, -1), values)
        else:
            mixed = self.mixed(
                _look_up(asking, here), _look_up(x, kinds), _look_up(values, kinds), narrow
            )
        return (
            mixed
            if self.config.block == "minimal"
            else self.expanded(0, mixed + _look_up(table, here))
        )

    def layer(self, number: int, hidden: Tensor, narrow: bool) -> Float[Tensor, "member row d"]:
        norm = f"dyck.layers.{number}.norm_1"
        x = queries = self.normal(norm, hidden)
        if narrow:
            # Normalised again instead of selected from x: then the backward pass has one selection, not two.
            hidden = self.narrowed(hidden)
            queries = self.normal(norm, hidden)
        asking, value = self.joined(number)
        return self.expanded(
            number, hidden + _linear(self.mixed(_linear(queries, asking), x, x, narrow), value)
        )

    def mixed(
        self, asking: Tensor, keys: Tensor, values: Tensor, narrow: bool
    ) -> Float[Tensor, "member row d_v"]:
        """Return each query's causal softmax over the positions up to it, applied to values."""
        sequences, n = self.tokens.shape[0] * self.tokens.shape[1], self.tokens.shape[2]
        # Keys come first: then their gradient, the larger one, has the right memory order and is not copied.
        logits = torch.bmm(
            keys.view(sequences, n, -1), asking.view(sequences, -1, keys.shape[-1]).mT
        ).mT
        places = torch.arange(n, device=keys.device)
        queries = self.rows.reshape(sequences, -1, 1) if narrow else places[:, None]
        weights = torch.softmax(logits.masked_fill(places > queries, -torch.inf), -1)
        return torch.bmm(weights, values.view(sequences, n, -1)).view(
            len(keys), -1, values.shape[-1]
        )

    def joined(self, number: int) -> tuple[_Linear, _Linear]:
        """Return W_KᵀW_Q and W_O W_V of a layer's one head, each with its bias.

        The bias of keys adds a constant to all logits of a query, so it is left out.
        """
        name = f"dyck.layers.{number}."
        query, (key, _), value = (
            self.folded(f"{name}norm_1", f"{name}attention.{part}_proj") for part in "qkv"
        )
        if self.config.has_output_projection:
            value = _after(*self.folded("", f"{name}attention.o_proj"), value)
        return _after(key.mT * (self.config.key_size or 1) ** -0.5, None, query), value

    def expanded(self, number: int, hidden: Tensor) -> Tensor:
        """Return a layer's output from the state after attention: residual connection and feed-forward block."""
        name = f"dyck.layers.{number}."
        up = _linear(
            self.normal(f"{name}norm_2", hidden), self.folded(f"{name}norm_2", f"{name}up")
        )
        return hidden + _linear(functional.gelu(up), self.folded("", f"{name}down"))

    def normal(self, norm: str, x: Tensor) -> Tensor:
        """Return a LayerNorm without its gains, if the norm exists; the gains are folded into the weights after it."""
        return functional.layer_norm(x, x.shape[-1:]) if f"{norm}.weight" in self.parameters else x

    def folded(self, norm: str, name: str) -> _Linear:
        """Return weight and bias of a linear layer, including gains and biases of the norm before it, if any."""
        weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        if f"{norm}.weight" not in self.parameters:
            return weight, bias
        gain, shift = self.parameters[f"{norm}.weight"], self.parameters[f"{norm}.bias"]
        return weight * gain[:, None], _moved(weight, bias, shift)

    def narrowed(self, x: Float[Tensor, "member place size"]) -> Float[Tensor, "member row size"]:
        start = torch.arange(self.tokens.shape[1], device=x.device)[:, None] * self.tokens.shape[2]
        return _look_up(x, self.rows + start)


def _look_up(
    table: Float[Tensor, "member kind size"], index: Tensor
) -> Float[Tensor, "member rows size"]:
    start = torch.arange(len(table), device=table.device)[:, None] * table.shape[1]
    return functional.embedding(index.flatten(1) + start, table.flatten(0, 1))


def _linear(x: Tensor, layer: _Linear) -> Tensor:
    weight, bias = layer
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def _after(weight: Tensor, bias: Tensor | None, first: _Linear) -> _Linear:
    return torch.bmm(weight, first[0]), _moved(weight, bias, first[1])


def _moved(weight: Tensor, bias: Tensor | None, shift: Tensor | None) -> Tensor | None:
    """Return a linear layer's output for a constant vector."""
    if shift is None:
        return bias
    moved = torch.bmm(weight, shift[..., None])[..., 0]
    return moved if bias is None else bias + moved
