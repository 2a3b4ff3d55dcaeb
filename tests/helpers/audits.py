"""Audits made from random attention, with everything that a report must cope with."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from identilens.runs.tables import table_of
from identilens.studies.audit.result import Audit

SCRIPT = "<script>alert(1)</script>"
TRICKY = (
    SCRIPT, "</script>", "<!--", "\u2028", "$x$", "_$", "&amp;", "<b>bold</b>", "水", "", "\n", "\u202egnp",
    "if",
)  # fmt: skip

TEXTS = [
    "The ferry left the harbour before dawn, and nobody on the quay could say who had paid for it. "
    "Letters arrived for weeks afterwards, each with a different stamp.",
    "Stop.",
    "A good map leaves things out, and the reader seldom notices that anybody decided.",
]
"""A text of some length, a very short one, and one between."""


@dataclass(frozen=True)
class Plan:
    """One kind of attention to make up: tokens of the queries and of the keys, and how many layers and heads."""

    queries: Sequence[str]
    keys: Sequence[str]
    kind: str = "encoder"
    layers: int = 2
    heads: int = 3
    d_v: int = 4
    types: Sequence[str] = ("[CLS]", "other")


def words(count):
    """Return distinct tokens, special ones at both ends."""
    return ["[CLS]", *(f"word{index}" for index in range(count - 2)), "[SEP]"][:count]


def made_audit(texts, keep=()):
    """Return an audit of made-up attention, one sequence of plans for each text."""
    generator = torch.Generator().manual_seed(0)
    rows, types, matrices, tokens, certain, effects = [], [], {}, {}, [], []
    for text, plans in enumerate(texts):
        for plan in plans:
            for layer in range(plan.layers):
                for head in range(plan.heads):
                    raw, effective = _maps(plan, generator)
                    rows.append(_row(text, layer, head, plan, raw, effective))
                    certain += _certain(text, layer, head, plan)
                    at = {"text": text, "layer": layer, "head": head, "kind": plan.kind}
                    effect = 0.5 ** (layer + 3 * head)
                    effects.append({**at, "outcome": "states", "by": "removal", "effect": effect})
                    types += _types(plan, layer, head, raw, effective)
                    if text in keep:
                        key = f"text{text}.layer{layer}.head{head}.{plan.kind}"
                        matrices |= {
                            f"{key}.raw": raw.float(),
                            f"{key}.effective": effective.float(),
                        }
            if text in keep:
                own = "decoder" if plan.kind in ("decoder", "cross") else "encoder"
                tokens.setdefault(text, {})[own] = list(plan.queries)
                tokens[text]["encoder" if plan.kind == "cross" else own] = list(plan.keys)
    tables = {"table": rows, "token_types": types, "rows": certain, "effects": effects}
    frames = {name: table_of(Audit.schema[name], held) for name, held in tables.items()}
    return Audit.of(frames, _record(len(texts)), matrices, tokens)


def mixed_audit():
    """An encoder-decoder with tricky tokens, two kept texts and a text of one token."""
    source, target = [*TRICKY, *words(5)], words(6)
    odd = ("[CLS]", "_odd", SCRIPT, ". ,")

    def three(source, target):
        ends = ((source, source, "encoder"), (target, target, "decoder"), (target, source, "cross"))
        return [Plan(queries, keys, kind, types=odd) for queries, keys, kind in ends]

    return made_audit(
        [three(source, target), three(words(8), words(3)), [Plan(["one"], ["one"], types=odd)]],
        (0, 1),
    )


def _maps(plan, generator):
    values = torch.randn(len(plan.keys), plan.d_v, generator=generator, dtype=torch.float64)
    weights = torch.softmax(
        2 * torch.randn(len(plan.queries), len(plan.keys), generator=generator).double(), -1
    )
    return weights, weights @ values @ torch.linalg.pinv(values)


def _row(text, layer, head, plan, raw, effective):
    n_key = len(plan.keys)
    rank = min(n_key, plan.d_v)
    pair = torch.stack([raw.flatten(), effective.flatten()])
    return {
        "text": text, "layer": layer, "head": head, "kind": plan.kind, "n_query": len(plan.queries), "n_key": n_key,
        "d_k": 4, "d_v": plan.d_v, "d_model": 8, "rank": rank, "nullity": n_key - rank,
        "simplex_nullity": max(0, n_key - rank - 1),
        "null_share": float((raw - effective).square().sum() / raw.square().sum()),
        "simplex_null_share": 0.5 * float((raw - effective).square().sum() / raw.square().sum()),
        "pearson": float(torch.corrcoef(pair)[0, 1]) if raw.numel() > 1 else None, "reconstruction_error": 1e-7,
        "certain_mass": 0.3 + 0.2 * head, "certain_mass_bfloat16": 0.25 + 0.2 * head,
        "certain_mass_error": 0.05, "certain_rows": 2,
        "output_share": (1 + layer + head) / (plan.heads * (plan.layers + plan.heads)), "sink": 0,
        "sink_token": plan.keys[0], "sink_mass": float(raw[:, 0].mean()), "sink_norm_share": 0.1,
        "sink_value_norm": 0.2, "first_mass": float(raw[:, 0].mean()),
        "learned_sink": 0.0, "stacked_rank": plan.heads * plan.d_v,
    }  # fmt: skip


def _certain(text, layer, head, plan):
    for query in range(min(2, len(plan.queries))):
        yield {
            "text": text, "layer": layer, "head": head, "kind": plan.kind, "query": query,
            "certain_mass": 0.25 + 0.2 * head + 0.1 * query, "certain_mass_bfloat16": 0.2,
            "sink_weight": 0.5, "sink_lo": 0.4, "sink_hi": 0.6,
        }  # fmt: skip


def _types(plan, layer, head, raw, effective):
    count = len(plan.types)
    for place, query_type in enumerate(plan.types):
        for key_place, key_type in enumerate(plan.types):
            pair = [matrix[place::count, key_place::count] for matrix in (raw, effective)]
            queries = max(1, len(pair[0]))
            sums = [float(matrix.sum()) / queries for matrix in pair]
            yield {
                "kind": plan.kind, "layer": layer, "head": head, "query_type": query_type, "key_type": key_type,
                "queries": queries, "raw": sums[0], "effective": sums[1],
            }  # fmt: skip


def _record(texts):
    return {
        "analysis": "audit",
        "fingerprint": "f0" * 32,
        "model": {
            "name": f"models/{SCRIPT}",
            "digest": "ab" * 32,
            "dtype": "float32",
            "device": "cpu",
        },
        "settings": {"layers": None, "batch_size": 8, "rank_tolerance": "max(n, d_model) * eps"},
        "seed": None,
        "libraries": {"identilens": "0.1.0"},
        "python": "3.11",
        "platform": "somewhere",
        "command": ["identilens", "audit", "--text", f"{SCRIPT} \udcff"],
        "texts": {"count": texts, "sha256": ["00"] * texts},
    }
