"""Texts in, results out: how much of each input token is in each hidden token."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor

from identilens.errors import InputError, NumericalError
from identilens.measures.attention import effective_attention
from identilens.measures.mixing.contributions import contributions
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads
from identilens.models.capture import Collector
from identilens.models.derivative.jacobian import DEFAULT_BUDGET, DEFAULT_PROBES, Method, SquaredNorms, jacobian_norms
from identilens.models.inputs import Item
from identilens.models.layout import Kind
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap, HiddenState, Wrt, sources
from identilens.results.mixing import MIXING_COLUMNS, TOKEN_COLUMNS, Mixing
from identilens.results.parts import run_parts, whole
from identilens.results.provenance import provenance

Rollouts = dict[str, tuple[Tensor, Tensor]]
"""Raw and effective rollout [layer, hidden, input] for each kind that has them."""


@dataclass(frozen=True)
class _Options:
    """What changes the numbers."""

    layers: tuple[int, ...] | None
    method: Method
    wrt: Wrt
    probes: int
    leading: int | None
    max_length: int | None
    rollouts: bool
    seed: int


def mixing(
    lens: Lens,
    texts: Any,
    *,
    layers: Sequence[int] | None = None,
    method: Method = "sketch",
    wrt: Wrt = "embeddings",
    probes: int = DEFAULT_PROBES,
    leading: int | None = None,
    memory_budget: int = DEFAULT_BUDGET,
    max_length: int | None = None,
    rollouts: bool = True,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Mixing:
    """Return the contribution of every input token to every hidden token (Brunner et al. 2020, Eq. 11).

    Each text runs by itself, without padding, in evaluation mode. Encoder–decoders give three kinds of hidden
    states: the encoder's, the decoder's by decoder input, and the decoder's by encoder input ("cross"); each is
    normalised by itself, and the column ``norm`` lets them be compared.

    Args:
        lens: The model, in single or double precision.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.
        layers: Layers to keep, as indices into the hidden states (1 is the first layer's output); all when None.
            All layers come from the same sweep, so that fewer save space, not time.
        method: ``exact``, or ``sketch``: random probes, with standard errors; see `jacobian_norms`.
        wrt: ``embeddings``, what enters the first layer, or ``embedding_sum``, what enters the norm before it.
        probes: Tangents for each input token of a sketch; more are slower and closer.
        leading: How many of them follow leading directions; a quarter when not given.
        memory_budget: Bytes of tensors that a sweep may hold at once.
        max_length: Cut longer texts to this many tokens.
        rollouts: Add raw and effective attention rollout, for comparison.
        seed: Of the random probes.
        out: Folder to fill text by text; nothing is written when not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (texts done, texts in all).

    Raises:
        InputError: For texts or options that cannot be used, half precision, or too small a budget.
        UnsupportedModelError: If the model's attention cannot be captured or its first layer not be found.
        NumericalError: If a derivative is NaN or infinite, naming the text.
        OutputFolderError: If ``out`` holds something else or cannot be written.
    """
    kept = None if layers is None else tuple(sorted(set(layers)))
    options = _Options(kept, method, wrt, probes, leading, max_length, rollouts, seed)
    items = lens.read(texts, max_length)
    _check_layers(options.layers, lens, items[0], wrt)
    record = _record(lens, items, options)

    def run(text: int) -> dict[str, pl.DataFrame]:
        try:
            return _one_text(lens, items[text], text, options, memory_budget)
        except NumericalError as error:
            raise NumericalError(f"text {text}: {error}") from error

    tables = run_parts(
        record,
        [1] * len(items),
        run,
        {"table": whole, "tokens": whole},
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    )
    return Mixing(tables["table"], tables["tokens"], record) if out is None else Mixing.load(out)


def _one_text(lens: Lens, item: Item, text: int, options: _Options, budget: int) -> dict[str, pl.DataFrame]:
    rollouts = _rollouts(lens, item) if options.rollouts else {}
    tables, tokens = [], []
    for number, source in enumerate(sources(lens)):
        hidden = HiddenMap(lens, item, source, options.wrt)
        seed = int(np.random.SeedSequence([options.seed, text, number]).generate_state(1)[0])
        norms = jacobian_norms(
            hidden,
            hidden.inputs,
            method=options.method,
            probes=options.probes,
            leading=options.leading,
            seed=seed,
            memory_budget=budget,
        )
        for label, found in zip(hidden.outputs, norms, strict=True):
            if options.layers is None or label.layer in options.layers:
                tables.append(_rows(text, label, found, rollouts))
        kinds: list[Kind] = list(dict.fromkeys([label.kind for label in hidden.outputs]))
        for kind in kinds:
            tokens.append(_token_rows(text, kind, "hidden", hidden.tokens(kind)))
            tokens.append(_token_rows(text, kind, "input", hidden.tokens()))
    return {"table": pl.concat(tables), "tokens": pl.concat(tokens)}


def _rows(text: int, label: HiddenState, norms: SquaredNorms, rollouts: Rollouts) -> pl.DataFrame:
    """Return the table rows of one layer of one text."""
    found = contributions(norms.squares, norms.variances)
    length, inputs = norms.squares.shape
    empty = [None] * (length * inputs)
    rolled = [rollout[label.layer - 1].flatten().cpu().numpy() for rollout in rollouts.get(label.kind, ())] or [
        empty,
        empty,
    ]
    columns = [
        np.full(length * inputs, text),
        pl.Series([label.kind]).new_from_index(0, length * inputs),
        np.full(length * inputs, label.layer),
        np.repeat(np.arange(length), inputs),
        np.tile(np.arange(inputs), length),
        found.shares.flatten().cpu().numpy(),
        found.errors.flatten().cpu().numpy(),
        norms.squares.clamp_min(0).sqrt().flatten().cpu().numpy(),
        *rolled,
    ]
    return pl.DataFrame(
        [
            pl.Series(name, column).cast(kind)
            for (name, kind), column in zip(MIXING_COLUMNS.items(), columns, strict=True)
        ]
    )


def _token_rows(text: int, kind: Kind, side: str, names: Sequence[str]) -> pl.DataFrame:
    rows = [(text, kind, side, position, name) for position, name in enumerate(names)]
    return pl.DataFrame(rows, schema=TOKEN_COLUMNS, orient="row")


def _rollouts(lens: Lens, item: Item) -> Rollouts:
    """Return raw and effective attention rollout of every kind of self-attention."""
    collector = Collector(lens.sites(item), [item], weights=True, use_sdpa=False)
    lens.run([item], collector)
    layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for layer in collector.layers[0]:
        if layer.site.kind == "cross" or layer.weights is None:
            continue
        group = len(layer.queries) // len(layer.values)
        effective = effective_attention(
            layer.values.repeat_interleave(group, 0),
            weights=layer.weights,
            output_projection=layer.site.output_projection,
            visible=None if bool(layer.visible.all()) else layer.visible,
        ).effective
        pair = mean_over_heads(layer.weights.to(effective.dtype)), mean_over_heads(effective)
        layers.setdefault(layer.site.kind, []).append(pair)
    return {
        kind: (
            attention_rollout(torch.stack([raw for raw, _ in pairs])),
            attention_rollout(torch.stack([eff for _, eff in pairs])),
        )
        for kind, pairs in layers.items()
    }


def _check_layers(layers: tuple[int, ...] | None, lens: Lens, item: Item, wrt: Wrt) -> None:
    held = {label.layer for source in sources(lens) for label in HiddenMap(lens, item, source, wrt).outputs}
    missing = sorted(set(layers or ()) - held)
    if missing or layers == ():
        raise InputError(
            f"the model gives hidden states of the layers 1 to {max(held)}; got {missing or 'none'}. "
            "Layer 1 is the first layer's output; the embeddings (0) are what contributes."
        )


def _record(lens: Lens, items: list[Item], options: _Options) -> dict[str, Any]:
    settings = {name: getattr(options, name) for name in _Options.__dataclass_fields__ if name != "seed"}
    if options.method == "exact":
        settings |= {"probes": None, "leading": None}
    texts = [item.identity for item in items]
    return provenance("mixing", model=lens.facts, texts=texts, settings=settings, seed=options.seed)
