"""Many Dyck transformers of one configuration at once: their parameters stacked, their logits in a few large products.

What is the same many times is computed once. Before the first layer stands one of a handful of vectors (a token, or a
type and depth), so that its norm, queries, keys and values are those of a table; without positions a key's weight
depends on its vector alone, and with c_u visible keys of kind u the softmax is softmax_u(l_u + log c_u): no n x n map
is needed. In later layers with one head queries meet keys through W_Qᵀ W_K, and values are projected after they are
mixed, by W_O W_V: nothing is projected at places that are only looked at. The last layer works at the wanted places
alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from identilens.dyck.configuration import DyckConfig
from identilens.dyck.embeddings import symbol_ids
from identilens.dyck.modeling import DyckForCausalLM

Parameters = Mapping[str, Tensor]
"""Parameters by the names of `DyckForCausalLM`, each with a first axis for the members."""


@dataclass(frozen=True, eq=False)
class Places:
    """Places of each sequence that are wanted, counted through each member's batch.

    Attributes:
        own: Places within their sequence: [member, batch, row].
        flat: The same, counted through the batch: [member, all rows].
    """

    own: Int[Tensor, "member batch row"]
    flat: Int[Tensor, "member rows"]

    def take(self, x: Float[Tensor, "member place size"]) -> Float[Tensor, "member rows size"]:
        """Return what stands at the places."""
        start = torch.arange(len(x), device=x.device)[:, None] * x.shape[1]
        return functional.embedding(self.flat + start, x.flatten(0, 1))


def _places(rows: Int[Tensor, "member batch row"], n: int) -> Places:
    start = torch.arange(rows.shape[1], device=rows.device)[:, None] * n
    return Places(rows, (rows + start).flatten(1))


@dataclass(frozen=True, eq=False)
class Inputs:
    """What enters the first layer: a table of different vectors, and which of them stands where.

    Attributes:
        table: The vectors.
        index: Their places: [member, batch, position].
        bare: Whether a vector says nothing of its position.
    """

    table: Float[Tensor, "member kind d_in"]
    index: Int[Tensor, "member batch n"]
    bare: bool

    def gather(
        self, table: Float[Tensor, "member kind size"], places: Places | None
    ) -> Float[Tensor, "member row size"]:
        """Return the row of a table that stands at each position, or at the places asked for."""
        flat = self.index.flatten(1)
        if places is not None:
            flat = flat.gather(1, places.flat)
        start = torch.arange(len(flat), device=flat.device)[:, None] * table.shape[1]
        return functional.embedding(flat + start, table.flatten(0, 1))


def stack_parameters(models: Sequence[DyckForCausalLM]) -> dict[str, Tensor]:
    """Return the models' parameters stacked, and their tables of a minimal first layer."""
    states = [dict(model.named_parameters()) | dict(model.named_buffers()) for model in models]
    return {name: torch.stack([state[name].detach() for state in states]) for name in states[0]}


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
) -> Float[Tensor, "member rows token"]:
    """Return next-token logits of every member, equal to those of its `DyckForCausalLM` to rounding.

    Args:
        config: Of the members.
        parameters: Stacked.
        tokens: Inputs of each member, a start token first, without padding.
        rows: Places of each sequence for which logits are wanted; all when not given.

    Returns:
        Sequence after sequence, the wanted places of each in their order.
    """
    inputs = _inputs(config, parameters, tokens)
    shape, last = tokens.shape[1:], config.num_hidden_layers - 1
    wanted = None if rows is None else _places(rows, tokens.shape[2])
    first = wanted if last == 0 else None
    mix = _counted if inputs.bare else _looked_up
    hidden = _behind_inputs(config, parameters, inputs, *mix(config, parameters, inputs, shape, first), first)
    for number in range(1, last + 1):
        hidden = _layer(config, parameters, number, hidden, shape, wanted if number == last else None)
    head, norm = parameters["lm_head.weight"], f"dyck.layers.{last}.norm_2"
    if config.block == "paper" or f"{norm}.weight" not in parameters:
        return _linear(hidden, head, None)
    return _linear(_normal(hidden), *_folded(parameters, "dyck.norm" if config.block == "gpt" else norm, head, None))


def _inputs(config: DyckConfig, parameters: Parameters, tokens: Tensor) -> Inputs:
    if config.first_layer != "learned":
        table = parameters["dyck.embeddings.symbol_table"][..., : config.d_in]
        return Inputs(table, symbol_ids(config.language, tokens), True)
    table = parameters["dyck.embeddings.tokens.weight"]
    if config.positions == "none":
        return Inputs(table, tokens, True)
    n = tokens.shape[-1]
    places = torch.arange(n, device=tokens.device)
    moved = (places / config.position_scale).to(table)[:, None] * parameters["dyck.embeddings.direction"][:, None, None]
    return Inputs((table[:, :, None] + moved).flatten(1, 2), tokens * n + places, False)


def _counted(
    config: DyckConfig, parameters: Parameters, inputs: Inputs, shape: Sequence[int], wanted: Places | None
) -> tuple[Float[Tensor, "member row d"], Float[Tensor, "member d"] | None]:
    """Return what `_looked_up` does where keys of a kind are all alike, from how many of each there are."""
    heads, kinds = config.num_attention_heads, inputs.table.shape[1]
    # [member, kind, heads x size] -> [member, head, kind, size]
    queries, keys, values = (
        part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in _projected(config, parameters, 0, inputs.table)
    )
    logits = (queries @ keys.mT * _scaling(config)).transpose(1, 2).flatten(2)
    counts = (
        (inputs.index[..., None] == torch.arange(kinds, device=logits.device)).to(logits.dtype).cumsum(2).flatten(1, 2)
    )
    counts = counts if wanted is None else wanted.take(counts)
    seen = inputs.gather(logits, wanted).unflatten(-1, (heads, kinds)) + counts.log()[:, :, None]
    # Each head's values are projected as a table too: heads and kinds are one axis to sum over.
    projection, bias = _output_projection(config, parameters, 0)
    if projection is not None:
        values = values @ projection.mT.unflatten(1, (heads, -1))
    elif heads > 1:
        raise RuntimeError("several heads always have an output projection")
    return torch.bmm(torch.softmax(seen, -1).flatten(2), values.flatten(1, 2)), bias


def _layer(
    config: DyckConfig,
    parameters: Parameters,
    number: int,
    hidden: Tensor,
    shape: Sequence[int],
    wanted: Places | None,
) -> Tensor:
    """Return the states behind a later layer, at all places or the wanted ones."""
    here = hidden if wanted is None else wanted.take(hidden)
    if config.num_attention_heads == 1:
        mixed = _one_head(config, parameters, number, hidden, here, shape, wanted)
    else:
        mixed = _many_heads(config, parameters, number, hidden, shape)
        mixed = mixed if wanted is None else wanted.take(mixed)
    return _behind_attention(config, parameters, number, mixed, here)


def _looked_up(
    config: DyckConfig, parameters: Parameters, inputs: Inputs, shape: Sequence[int], wanted: Places | None
) -> tuple[Float[Tensor, "member row d"], Float[Tensor, "member d"] | None]:
    """Return the first layer's projected attention output and what is still to be added to it everywhere.

    Of one head, queries and values are projected once for each vector of the table.
    """
    if config.num_attention_heads > 1:
        mixed = _many_heads(config, parameters, 0, inputs.gather(inputs.table, None), shape)
        return mixed if wanted is None else wanted.take(mixed), None
    meeting, start, value, total = _joined(config, parameters, 0)
    x = _normal(inputs.table) if _normed(parameters, 0) else inputs.table
    asking = inputs.gather(_linear(x, meeting, start), wanted)
    carried = inputs.gather(_linear(x, value, None), None)
    return _mixed(config, asking, inputs.gather(x, None), carried, shape, wanted), total


def _one_head(
    config: DyckConfig,
    parameters: Parameters,
    number: int,
    hidden: Float[Tensor, "member place d"],
    here: Float[Tensor, "member row d"],
    shape: Sequence[int],
    wanted: Places | None,
) -> Float[Tensor, "member row d"]:
    """Return a head's projected output at the wanted places, whose states are ``here``."""
    meeting, start, value, total = _joined(config, parameters, number)
    normed = _normed(parameters, number)
    x = _normal(hidden) if normed else hidden
    # Normed again rather than taken from x: the way back then passes one selection, not two.
    own = x if here is hidden else _normal(here) if normed else here
    return _linear(_mixed(config, _linear(own, meeting, start), x, x, shape, wanted), value, total)


def _joined(
    config: DyckConfig, parameters: Parameters, number: int
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return W_KᵀW_Q with its bias, and W_O W_V with its bias, of the one head of a layer.

    Logits are x_kᵀ W_KᵀW_Q x_q, the output W_O W_V (Σ a_k x_k). The keys' bias adds the same to all logits of a
    query, and is left out.
    """
    (query, bias), (key, _), (value, shift) = (_weights(config, parameters, number, part) for part in "qkv")
    start = None if bias is None else torch.bmm(bias[:, None], key)[:, 0]
    projection, added = _output_projection(config, parameters, number)
    if projection is not None:
        value = torch.bmm(projection, value)
        shift = None if shift is None else torch.bmm(projection, shift[..., None])[..., 0]
    total = shift if added is None else added if shift is None else shift + added
    return torch.bmm(key.mT, query), start, value, total


def _mixed(
    config: DyckConfig,
    asking: Float[Tensor, "member row d"],
    keys: Float[Tensor, "member place d"],
    values: Float[Tensor, "member place d_v"],
    shape: Sequence[int],
    wanted: Places | None,
) -> Float[Tensor, "member row d_v"]:
    """Return each asking place's causal softmax over the places before it, applied to values."""
    members, (batch, n) = len(keys), shape
    # Keys first: their gradient, the larger one, then comes out in order and is not copied.
    logits = torch.bmm(keys.view(members * batch, n, -1), asking.view(members * batch, -1, asking.shape[-1]).mT).mT
    places = torch.arange(n, device=keys.device)
    own = places[:, None] if wanted is None else wanted.own.reshape(members * batch, -1, 1)
    weights = torch.softmax((logits * _scaling(config)).masked_fill(places > own, -torch.inf), -1)
    return torch.bmm(weights, values.view(members * batch, n, -1)).view(members, -1, values.shape[-1])


def _many_heads(
    config: DyckConfig, parameters: Parameters, number: int, hidden: Tensor, shape: Sequence[int]
) -> Float[Tensor, "member place d"]:
    """Return the projected output of several heads, by fused attention."""
    members, (batch, n) = len(hidden), shape
    q, k, v = (
        part.reshape(members * batch, n, config.num_attention_heads, -1).transpose(1, 2)
        for part in _projected(config, parameters, number, hidden)
    )
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=_scaling(config))
    weight, bias = _output_projection(config, parameters, number)
    if weight is None:
        raise RuntimeError("several heads always have an output projection")
    return _linear(mixed.transpose(1, 2).reshape(members, batch * n, -1), weight, bias)


def _scaling(config: DyckConfig) -> float:
    return (config.key_size or 1) ** -0.5


def _normed(parameters: Parameters, number: int) -> bool:
    return f"dyck.layers.{number}.norm_1.weight" in parameters


def _weights(config: DyckConfig, parameters: Parameters, number: int, part: str) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias of queries, keys or values, to be used behind a norm without gains."""
    name = f"dyck.layers.{number}.attention.{part}_proj"
    weight, bias = parameters[f"{name}.weight"], parameters.get(f"{name}.bias")
    return (
        _folded(parameters, f"dyck.layers.{number}.norm_1", weight, bias)
        if _normed(parameters, number)
        else (weight, bias)
    )


def _projected(config: DyckConfig, parameters: Parameters, number: int, x: Tensor) -> list[Tensor]:
    """Return queries, keys and values."""
    x = _normal(x) if _normed(parameters, number) else x
    return [_linear(x, *_weights(config, parameters, number, part)) for part in "qkv"]


def _output_projection(config: DyckConfig, parameters: Parameters, number: int) -> tuple[Tensor | None, Tensor | None]:
    """Return W_O and its bias, None where there is none."""
    name = f"dyck.layers.{number}.attention.o_proj"
    return (
        (parameters[f"{name}.weight"], parameters.get(f"{name}.bias")) if config.has_output_projection else (None, None)
    )


def _behind_inputs(
    config: DyckConfig,
    parameters: Parameters,
    inputs: Inputs,
    mixed: Float[Tensor, "member row d"],
    bias: Float[Tensor, "member d"] | None,
    wanted: Places | None,
) -> Tensor:
    """Return the first layer's output from its projected attention output and the bias still to be added."""
    table = inputs.table
    if bias is not None and config.block == "gpt":
        # The residual is added as it is: the bias goes into the few vectors of its table, not to every place.
        table = table + bias[:, None]
    elif bias is not None:
        mixed = mixed + bias[:, None]
    residual = None if config.block == "minimal" else inputs.gather(table, wanted)
    return _behind_attention(config, parameters, 0, mixed, residual)


def _behind_attention(
    config: DyckConfig, parameters: Parameters, number: int, mixed: Tensor, residual: Tensor | None
) -> Tensor:
    """Return a layer's output from its projected attention output."""
    name = f"dyck.layers.{number}."
    if residual is None:
        return mixed
    if config.block == "gpt":
        hidden = residual + mixed
        up = _folded(parameters, f"{name}norm_2", parameters[f"{name}up.weight"], parameters[f"{name}up.bias"])
        expanded = functional.gelu(_linear(_normal(hidden), *up))
        return hidden + _linear(expanded, parameters[f"{name}down.weight"], parameters[f"{name}down.bias"])
    centred = mixed - mixed.mean(-1, keepdim=True)
    floor = max(config.norm_constant, torch.finfo(mixed.dtype).tiny)
    y = centred / torch.linalg.vector_norm(centred, dim=-1, keepdim=True).clamp_min(floor) + residual
    hidden = y
    for place in range(len((config.projection_widths or [])[number]) + 1):
        layer = f"{name}projection.layers.{place}"
        hidden = torch.relu(hidden) if place else hidden
        hidden = _linear(hidden, parameters[f"{layer}.weight"], parameters[f"{layer}.bias"])
    return y + hidden if config.projection_residual else hidden


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.bmm(x, weight.mT) if bias is None else torch.baddbmm(bias[:, None], x, weight.mT)


def _normal(x: Tensor) -> Tensor:
    """Return a LayerNorm without its gains: they are folded into the weights behind it."""
    return functional.layer_norm(x, x.shape[-1:])


def _folded(parameters: Parameters, norm: str, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return weight and bias of a linear layer with the gains and biases of the norm before it inside."""
    gain, shift = parameters[f"{norm}.weight"], parameters[f"{norm}.bias"]
    moved = torch.bmm(weight, shift[..., None])[..., 0]
    return weight * gain[:, None], moved if bias is None else bias + moved
