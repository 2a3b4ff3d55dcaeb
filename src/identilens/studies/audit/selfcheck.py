"""Checks that capture is faithful on a user's own model, each with its figure."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from identilens.models.capture import CapturedText, Collector, Lengths
from identilens.models.heads import Head
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens

_NOISE = {torch.float64: 1e-9, torch.float32: 5e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}


@dataclass(frozen=True)
class Check:
    """One check: what was measured, against which limit, and whether it holds.

    Attributes:
        name: What is checked.
        figure: The largest deviation found (or the smallest change, for the last check).
        limit: What the figure is compared with.
        passed: Whether the check holds.
        remark: How to read the figure.
    """

    name: str
    figure: float
    limit: float
    passed: bool
    remark: str


@torch.no_grad()
def selfcheck(lens: Lens, texts: Any, max_length: int | None = None) -> list[Check]:
    """Return the checks of a model on some texts: capture changes nothing, and heads explain the block.

    Args:
        lens: The model.
        texts: As for `Lens.capture`.
        max_length: Cut longer texts.

    Raises:
        UnsupportedModelError: If the attention cannot be captured at all.
    """
    items = lens.read(texts, max_length)
    sites = lens.sites(items[0])
    noise = _NOISE[next(lens.model.parameters()).dtype]
    lengths = Lengths(items)
    plain = lens.run(items)
    collector = Collector(sites, items, weights=True, use_sdpa=False)
    blocks: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output: blocks.append(output))  # pyright: ignore[reportArgumentType] a linear layer gives a tensor
        for module in {site.projection for site in sites}
    ]
    try:
        captured = lens.run(items, collector)
    finally:
        for hook in hooks:
            hook.remove()
    texts_seen = [
        CapturedText(item.tokens, tuple(layers), None) for item, layers in zip(items, collector.layers, strict=True)
    ]
    heads = [head for text in texts_seen for head in text.heads]
    streamed = lens.run(items, _in_blocks)
    uniform = lens.run(items, _uniform)
    unchanged = _deviation(plain, captured, lengths, len(items))
    change = _deviation(plain, uniform, lengths, len(items))
    return [
        _at_most("outputs unchanged by capture", unchanged, noise, "relative, final hidden state"),
        _at_most(
            "outputs unchanged in blocks of rows", _deviation(plain, streamed, lengths, len(items)), noise, "relative"
        ),
        _row_sums(heads, noise),
        _at_most("forbidden keys have no weight", _forbidden(heads), 0.0, "largest weight on a forbidden key"),
        _at_most("effective attention reproduces the head output", _reproduction(heads), noise, "relative"),
        _at_most("heads sum to the block's output", _block_sum(texts_seen, blocks), noise, "relative"),
        Check(
            "changing the weights changes the output",
            change,
            10 * noise,
            change > 10 * noise,
            "relative, uniform weights in every head",
        ),
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


def _deviation(plain: Any, other: Any, lengths: Lengths, texts: int) -> float:
    """Return the largest relative difference of final hidden states, padding left out."""
    worst = 0.0
    sequence = "decoder" if plain.get("encoder_last_hidden_state") is not None else "encoder"
    for index in range(texts):
        expected = plain[0][index].double()
        own = slice(lengths.kept(index, sequence, len(expected)))
        difference = (other[0][index].double() - expected)[own].abs().max()
        worst = max(worst, float(difference / expected[own].abs().max().clamp_min(1e-12)))
    return worst


def _row_sums(heads: list[Head], noise: float) -> Check:
    sums = torch.cat([head.attention.sum(-1) for head in heads])
    over = float((sums - 1).max())
    if float(sums.min()) < 1 - 10 * noise:
        return _at_most("rows sum to less than 1 (sinks)", over, noise, f"smallest sum {float(sums.min()):.3f}")
    return _at_most("rows sum to 1", float((sums - 1).abs().max()), noise, "largest deviation")


def _forbidden(heads: list[Head]) -> float:
    return max(0.0 if head.visible is None else float((head.attention * ~head.visible).max()) for head in heads)


def _reproduction(heads: list[Head]) -> float:
    worst = 0.0
    for head in heads:
        expected = head.head_output.double()
        error = torch.linalg.vector_norm(head.effective @ head.values.double() - expected) / torch.linalg.vector_norm(
            expected
        )
        worst = max(worst, float(error))
    return worst


def _block_sum(texts: list[CapturedText], blocks: list[Tensor]) -> float:
    worst = 0.0
    for index, text in enumerate(texts):
        for layer, block in zip(text.layers, blocks, strict=True):
            projection = layer.site.output_projection.double()
            total = torch.einsum("hnv,hvd->nd", layer.head_output.double(), projection)
            bias = layer.site.projection.bias
            total = total + bias.double() if isinstance(bias, Tensor) else total
            expected = block[index, : len(total)].double()
            worst = max(worst, float((total - expected).abs().max() / expected.abs().max().clamp_min(1e-12)))
    return worst
