"""Attention that looks like a stack and is not used, and the converse (Wen et al. 2023, Proposition 1 and B.1)."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.parsing import parse
from identilens.lab.dyck.stack_likeness import stack_likeness
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.lab.dyck.train.result import DyckRuns
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.runs.tables import table_of

LOOKS = 0.5
"""Share of a closing bracket's attention on the last unmatched bracket from which a head looks like a stack."""

UNUSED = 0.01
"""Fall of accuracy up to which a head's pattern counts as unused."""


def dyck_lens(model: DyckForCausalLM, name: str) -> Lens:
    """Return a lens on a Dyck model that reads bracket strings."""
    return Lens(model, bracket_tokenizer(model.config.language), name=name)


def head_table(
    models: Sequence[DyckForCausalLM], seeds: Sequence[int], tokens: Int[Tensor, "count n"], *, draws: int = 3,
    seed: int = 0,
) -> pl.DataFrame:  # fmt: skip
    """Return, for every head of every model, how stack-like it looks and what changing its attention does.

    ``removed``: the head's output is zero. ``even``: every visible key has the same weight. ``random``: rows even on
    the simplex of visible keys, the mean over several draws. ``looks``: at least half of a closing bracket's attention
    lies on the last unmatched bracket, on average. ``used``: one of the three costs more than a point of accuracy.
    ``seeds`` are those of the models, ``seed`` that of the random patterns.
    """
    rows = []
    for number, model in zip(seeds, models, strict=True):
        rows += _heads_of(dyck_lens(model, f"seed {number}"), number, tokens, draws, seed)
    return table_of({name: kind for name, kind in DyckRuns.schema["heads"].items() if name != "setting"}, rows)


def _heads_of(lens: Lens, number: int, tokens: Tensor, draws: int, seed: int) -> list[dict[str, Any]]:
    model: Any = lens.model
    items = [Item({"input_ids": row}, {"encoder": ("",) * len(row)}) for row in tokens[:, :-1]]
    sites = lens.sites(items[0])
    parsed = parse(model.config.language, tokens)
    closing = (parsed.depth[:, :-1] > 0) & model.config.language.is_close(tokens[:, 1:])
    weights: dict[int, Tensor] = {}

    def keep(call: AttentionCall) -> Tensor:
        output, weights[call.index] = call.attend()
        return output

    def accuracy(handler: Any) -> float:
        output = lens.run(items, handler, whole=True, changes=handler is not keep)
        logits = output.logits[..., model.config.language.closing]
        return float((logits.argmax(-1) == parsed.top_type[:, :-1])[closing].double().mean())

    whole = accuracy(keep)
    rows = []
    for index, site in enumerate(sites):
        for head in range(site.heads):
            looks = stack_likeness(model.config.language, weights[index][:, head], tokens[:, :-1])
            fallen = {
                what: fmean(accuracy(_Changed(index, head, what, seed + draw)) for draw in range(count))
                for what, count in (("removed", 1), ("even", 1), ("random", draws))
            }
            fall = whole - min(fallen.values())
            rows.append({
                "seed": number, "layer": site.layer, "head": head, "stack_weight": looks.weight,
                "stack_first": looks.first, "even_weight": looks.even, "accuracy": whole, **fallen,
                "largest_fall": fall, "looks": looks.weight >= LOOKS, "used": fall > UNUSED,
            })  # fmt: skip
    return rows


class _Changed:
    """Answers attention calls, one head's attention changed."""

    def __init__(self, index: int, head: int, what: str, seed: int) -> None:
        self.index, self.head, self.what = index, head, what
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(self, call: AttentionCall) -> Tensor:
        output, weights = call.attend()
        if call.index != self.index:
            return output
        if self.what == "removed":
            output[:, :, self.head] = 0.0
            return output
        of_head: Float[Tensor, "batch n n"] = weights[:, self.head]
        drawn = torch.ones_like(of_head)
        if self.what == "random":
            # Exponential variables divided by their sum are even on the simplex.
            drawn = torch.empty(of_head.shape).exponential_(generator=self.generator).to(of_head)
        drawn = drawn.tril()
        group = self.head // (call.query.shape[1] // call.value.shape[1])
        output[:, :, self.head] = (drawn / drawn.sum(-1, keepdim=True)) @ call.value[:, group]
        return output
