"""A lens in two lines of text; nothing is computed for it."""

from collections.abc import Sequence
from typing import Any

from identilens.models.layout import Site

_WAYS = {
    "interface": "captured where the model hands it over",
    "followed": "captured by following it from the softmax to the output projection",
}


def described(lens: Any, sites: Sequence[Site] | None) -> str:
    """Return what a lens is on: the model, its attention once it was found (else sizes by its configuration)."""
    model, config = type(lens.model).__name__, lens.model.config
    dtype = str(lens.dtype).removeprefix("torch.")
    head = f"Lens({lens.name!r}: {model}, {config.model_type}, {dtype} on {lens.device}"
    if sites is None:
        return f"{head},\n     {_configured(config)}; attention is looked for on the first text)"
    kinds = dict.fromkeys(site.kind for site in sites)
    sizes = "; ".join(_sizes(kind, [site for site in sites if site.kind == kind]) for kind in kinds)
    return f"{head},\n     {sizes}; {_WAYS[lens.capture_way]})"


def _sizes(kind: str, sites: Sequence[Site]) -> str:
    heads, widths = {site.heads for site in sites}, {site.value_bias.shape[-1] for site in sites}
    return f"{kind}: {len(sites)} layers × {_range(heads)} heads, d_v {_range(widths)}"


def _range(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)}-{max(numbers)}"


def _configured(config: Any) -> str:
    """Return the numbers of layers and heads and d_v that a configuration gives, as far as it does."""
    names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
    layers, heads, width = (getattr(config, name, None) for name in names)
    if not (isinstance(layers, int) and isinstance(heads, int) and isinstance(width, int)):
        return "sizes not in its configuration"
    return f"{layers} layers × {heads} heads, d_v {getattr(config, 'head_dim', None) or width // heads}"
