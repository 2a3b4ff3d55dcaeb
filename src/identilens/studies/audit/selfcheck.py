"""Checks that capture is faithful on a user's own model, each with its figure."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from identilens.models.capture import Collector, Lengths
from identilens.models.heads import CapturedLayer, Head
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens

_NOISE = {torch.float64: 1e-9, torch.float32: 5e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Check:
    """One check; its figure is the largest deviation found (the smallest change, for the last check)."""

    name: str
    figure: float
    limit: float
    passed: bool
    remark: str


@torch.no_grad()
def selfcheck(lens: Lens, texts: Any, max_length: int | None = None) -> list[Check]:
    """Return the checks of a model on some texts: capture changes nothing, and heads explain the block.

    Raises:
        UnsupportedModelError: If the attention cannot be captured at all.
    """
    items = lens.read(texts, max_length)
    noise = _NOISE[next(lens.model.parameters()).dtype]
    plain, lengths = lens.run(items), Lengths(items)
    collector = Collector(lens.sites(items[0]), items, weights=True)
    blocks: list[Tensor] = []
    with ExitStack() as hooks:
        for module in {site.projection for site in collector.sites}:
            hooks.enter_context(module.register_forward_hook(lambda _module, _inputs, output: blocks.append(output)))  # pyright: ignore[reportArgumentType] a linear layer gives a tensor
        captured = lens.run(items, collector)
    heads = [head for layers in collector.layers for layer in layers for head in layer.heads]
    unchanged, streamed, change = (
        _deviation(plain, other, lengths, len(items))
        for other in (captured, lens.run(items, _in_blocks), lens.run(items, _uniform))
    )
    remark = "relative, uniform weights in every head"
    return [
        _at_most("outputs unchanged by capture", unchanged, noise, "relative, final hidden state"),
        _at_most("outputs unchanged in blocks of rows", streamed, noise, "relative"),
        _row_sums(heads, noise),
        _at_most("forbidden keys have no weight", _forbidden(heads), 0.0, "largest weight on a forbidden key"),
        _at_most("effective attention reproduces the head output", _reproduction(heads), noise, "relative"),
        _at_most("heads sum to the block's output", _block_sum(collector.layers, blocks), noise, "relative"),
        Check("changing the weights changes the output", change, 10 * noise, change > 10 * noise, remark),
    ]


def _at_most(name: str, figure: float, limit: float, remark: str) -> Check:
    return Check(name, figure, limit, figure <= limit, remark)


def _in_blocks(call: AttentionCall) -> Tensor:
    n = call.query.shape[-2]
    return torch.cat([call.attend(slice(start, min(start + 3, n)))[0] for start in range(0, n, 3)], 1)


def _uniform(call: AttentionCall) -> Tensor:
    values = call.value.repeat_interleave(call.query.shape[1] // call.value.shape[1], 1)
    visible = call.visible()
    if visible is None:
        return values.mean(2)[:, None].expand(-1, call.query.shape[-2], -1, -1).contiguous()
    weights = visible.to(values.dtype)
    weights = weights / weights.sum(-1, keepdim=True).clamp_min(1)
    return (weights[:, None] @ values).transpose(1, 2).contiguous()


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max().clamp_min(1e-12))


def _deviation(plain: Any, other: Any, lengths: Lengths, texts: int) -> float:
    """Return the largest relative difference of final hidden states, padding left out."""
    sequence = "decoder" if plain.get("encoder_last_hidden_state") is not None else "encoder"
    own = [slice(lengths.kept(index, sequence, plain[0].shape[1])) for index in range(texts)]
    pairs = zip(own, other[0].double(), plain[0].double(), strict=True)
    return max(_relative(found[rows], expected[rows]) for rows, found, expected in pairs)


def _row_sums(heads: list[Head], noise: float) -> Check:
    sums = torch.cat([head.family_weights.double().sum(-1) for head in heads])
    over = float((sums - 1).max())
    if float(sums.min()) < 1 - 10 * noise:
        return _at_most("rows sum to less than 1 (sinks)", over, noise, f"smallest sum {float(sums.min()):.3f}")
    return _at_most("rows sum to 1", float((sums - 1).abs().max()), noise, "largest deviation")


def _forbidden(heads: list[Head]) -> float:
    return max(0.0 if head.visible is None else float((head.family_weights * ~head.visible).max()) for head in heads)


def _reproduction(heads: list[Head]) -> float:
    norm = torch.linalg.vector_norm
    effective = (head.projected.effective(head.family_weights.double(), head.visible) for head in heads)
    pairs = [
        (one @ head.values.double(), head.head_output.double()) for one, head in zip(effective, heads, strict=True)
    ]
    return max(float(norm(found - expected) / norm(expected)) for found, expected in pairs)


def _block_sum(texts: list[list[CapturedLayer]], blocks: list[Tensor]) -> float:
    worst = 0.0
    for index, layers in enumerate(texts):
        for layer, block in zip(layers, blocks, strict=True):
            projection, bias = layer.site.output_projection.double(), layer.site.projection.bias
            total = torch.einsum("hnv,hvd->nd", layer.head_output.double(), projection)
            total = total + bias.double() if isinstance(bias, Tensor) else total
            worst = max(worst, _relative(total, block[index, : len(total)].double()))
    return worst
