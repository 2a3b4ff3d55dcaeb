"""Attention in windows, tiles or frames: their rows of the attention batch joined to one map per text."""

from dataclasses import replace

import torch
from jaxtyping import Shaped
from torch import Tensor

from identilens.models.interface import AttentionCall, Handler


def by_text(handler: Handler, texts: int) -> Handler:
    """Return a handler that gets all windows of a text as one attention call.

    The windows of a text are concatenated in the order of the model; keys of other windows are hidden.
    """

    def answer(call: AttentionCall) -> Tensor:
        batch, _, queries, _ = call.query.shape
        windows, rest = divmod(batch, texts)
        if windows < 2 or rest:
            return handler(call)
        arguments = {**call.arguments, "is_causal": False}
        if (bias := arguments.get("position_bias")) is not None:
            arguments["position_bias"] = _blocks(
                bias.expand(batch, -1, queries, -1),
                windows,
                0.0,
            )
        mask = call.mask_of()
        if mask is None:
            mask = call.query.new_ones(1, 1, queries, call.key.shape[2]).bool()
        hidden = False if mask.dtype == torch.bool else torch.finfo(mask.dtype).min
        query, key, value = (
            part.unflatten(0, (-1, windows)).transpose(1, 2).flatten(2, 3)
            for part in (call.query, call.key, call.value)
        )
        joined = replace(
            call,
            query=query,
            key=key,
            value=value,
            mask=_blocks(mask.expand(batch, -1, queries, -1), windows, hidden),
            arguments=arguments,
            part=lambda: call.run().unflatten(0, (-1, windows)).flatten(1, 2),
            windows=windows,
        )
        return handler(joined).unflatten(1, (windows, -1)).flatten(0, 1)

    return answer


def _blocks(
    maps: Shaped[Tensor, "rows head query key"], windows: int, outside: float | bool
) -> Shaped[Tensor, "text head queries keys"]:
    """Return the maps of each text's windows as blocks of one map."""
    same = torch.eye(windows, dtype=torch.bool, device=maps.device)[:, None, :, None]
    placed = maps.unflatten(0, (-1, windows)).transpose(1, 2).unsqueeze(-2)
    return torch.where(same, placed, outside).flatten(-2).flatten(-3, -2)
