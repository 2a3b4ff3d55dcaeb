"""Results whose tables are written by hand, without a model, for tests of what is said and drawn of them."""

from dataclasses import replace

import polars as pl
import torch

from helpers.mixings import mixing_of
from identilens.studies.alternatives.result import Alternatives
from identilens.studies.answer.result import Answers
from identilens.studies.audit.result import Audit
from identilens.studies.certify.result import Certainty
from identilens.studies.faithfulness.result import Faithfulness
from identilens.studies.influence.result import Influence
from identilens.studies.inversion.result import NEXT, SINGLE, Inversion
from identilens.studies.patterns.result import PatternScores
from identilens.studies.rollout.result import Rollouts
from identilens.studies.tokens.result import TokenIdentifiability

RECORD = {"model": {"name": "toy", "dtype": "float32"}, "texts": {"count": 2}, "settings": {}}


def written(result, matrices=None, tokens=None, **tables):
    """Return a result of rows by column name; a column that a row leaves out is null."""
    frames = {
        name: pl.DataFrame(
            [{column: row.get(column) for column in result.schema[name]} for row in rows],
            schema=pl.Schema(result.schema[name]),
        )
        for name, rows in tables.items()
    }
    return result.of(frames, RECORD, matrices=matrices or {}, tokens=tokens or {})


def first_rows(result):
    """Return a result of which every table has its first row only."""
    tables = {name: getattr(result, name).head(1) for name in result.schema}
    return result.of(tables, result.provenance, matrices=result.matrices, tokens=result.tokens)


_VERDICTS = ("determined, large share", "not determined, small share", "negligible")


def certainty(queries=((0, 0), (0, 1), (1, 0)), tolerances=("0", "1%"), kinds=("encoder",)):
    """Rows of three keys, by head and query, each for some tolerances."""
    table, rows = [], []
    for kind in kinds:
        for looser, tolerance in enumerate(tolerances):
            for head, query in queries:
                at = {"text": 0, "layer": 2, "head": head, "kind": kind, "query": query}
                at |= {"tolerance": tolerance}
                named = at | {"query_token": f"q{query}"}
                for key, weight in enumerate((0.5, 0.25, 0.25)):
                    less = 0.125 * key * (1 + looser) + 0.0625 * head
                    table.append({
                        **named, "outcome": "head", "functional": f"key {key}", "key": key,
                        "token": "abc"[key], "value": weight, "lo": max(0.0, weight - less),
                        "hi": weight + less, "radius": 0.125, "effective": weight - 0.125,
                        "norm_share": (0.5, 0.375, 0.125)[key], "contribution": 0.25,
                        "removal": 0.0625, "verdict": _VERDICTS[key],
                    })  # fmt: skip
                rows.append({
                    **named, "outcome": "head", "allowed": 0.01 * looser, "predicted": 0.5, "farthest": 0.25,
                    "measured": 0.25 + 0.5 * query + 0.25 * head, "simplex_nullity": 1,
                    "certified_top": 0 if head == 0 else None, "gap": 0.0,
                })  # fmt: skip
    return written(Certainty, table=table, rows=rows)


def alternatives(texts=2, found=True):
    """Two heads of each text, with alternatives of three kinds; those of the second head lie within the first row."""
    table, matrices = [], {}
    for text in range(texts):
        for head in (0, 1):
            at = {"text": text, "layer": head, "head": head, "kind": "encoder"}
            key = f"text{text}.layer{head}.head{head}.encoder"
            raw = torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]])
            matrices |= {f"{key}.raw": raw, f"{key}.effective": raw - 0.125}
            for number, name in enumerate(("far", "sampled", "realisable")):
                named = at | {"alternative": name}
                distance = 0.5 / (1 + number) if found else None
                table.append({
                    **named, "n_query": 2, "n_key": 3, "d_k": 4, "simplex_nullity": 1 - head,
                    "mean_total_variation": distance, "largest_total_variation": 0.75 - 0.125 * number,
                    "distance_bound": 0.625 if number == 0 else None, "output_error": 1e-9 * (1 + number),
                    "hidden_change": (1 + text + head) * 10.0**-7, "logits_change": 2e-7 if head else None,
                    "loss_change": None, "note": "stopped early" if number == 2 else "",
                })  # fmt: skip
                matrices[f"{key}.alternative_{name}"] = raw.roll(1 + number, 1)
    tokens = {text: {"encoder": ["a", "b", "c"]} for text in range(texts)}
    return written(Alternatives, matrices, tokens, table=table)


def faithfulness(texts=2, determined=False):
    """Rows of some texts: ``raw`` is more faithful than ``norms``, and less stable; two orders are random."""
    table, determinacy = [], []
    orders = (("raw", 0), ("norms", 0), ("random", 0), ("random", 1))
    for text in range(texts):
        at = {"text": text, "layer": 0, "head": 1, "kind": "encoder"}
        for query in (0, 1):
            row = at | {"query": query}
            for place, (name, draw) in enumerate(orders):
                for intervention in ("zero", "renormalise"):
                    for outcome in ("hidden", "loss"):
                        lost = outcome == "loss" and query == 1
                        better = 0.125 * (text - (outcome == "loss"))
                        table.append({
                            **row, "parts": 4, "intervention": intervention, "outcome": outcome,
                            "explanation": name, "draw": draw, "floor": 1e-6, "aopc": 0.25,
                            "correlation": 0.5 - 0.25 * place + 0.125 * query,
                            "naopc": None if lost else 0.75 - 0.25 * place + better, "p": (place + 1) / 3,
                        })  # fmt: skip
                if not determined and not draw:
                    none = name == "norms" and query == 1
                    determinacy.append({
                        **row, "explanation": name, "total_variation": 0.5,
                        "agreement": None if none else 0.375 + 0.25 * place + 0.0625 * text,
                    })  # fmt: skip
    return written(Faithfulness, table=table, determinacy=determinacy)


def decided(texts=2):
    """Two explanations of the decisions on some texts, beside nineteen random orders: one is better than these."""
    orders = [("alti", 0, 0.5), ("raw", 0, 0.0), *(("random", at, at / 64) for at in range(19))]
    table = [
        {
            "text": text, "parts": 4, "intervention": intervention, "outcome": "probability", "explanation": name,
            "draw": draw, "floor": 0.0, "correlation": 0.5, "aopc": area + 0.0625 * text, "p": 0.5,
        }
        for text in range(texts)
        for intervention in ("without", "alone")
        for name, draw, area in orders
    ]  # fmt: skip
    tokens = (
        (" terri", -0.375, True),
        ("##ble", -0.125, True),
        (" a", 0.0, False),
        (" not", 0.125, False),
    )
    needed = [
        {
            "text": text, "answer": "NEGATIVE", "own_answer": "NEGATIVE", "probability": 0.75,
            "position": 1 + place, "token": token,
            "change": change / (1 + text), "enough": enough,
        }
        for text in range(texts)
        for place, (token, change, enough) in enumerate(tokens)
    ]  # fmt: skip
    return written(Faithfulness, table=table, needed=needed)


def influenced(outcome="prediction", texts=2, rows=True, answer=None):
    """Two heads of two layers; of one row of the last one, three keys are hidden. An answer has two tokens."""
    table, keys, tokens = [], [], []
    for text in range(texts):
        for layer in (0, 1):
            for head in (0, 1):
                at = {"text": text, "layer": layer, "head": head, "kind": "decoder"}
                effect = 0.5 * layer + 0.03125 * head + 0.0625 * text
                estimate = 0.75 * effect + 0.5 * (1 - layer) if rows else None
                change = 0.25 - effect if answer else None
                table.append(
                    {
                        **at, "effect": effect, "effect_of_mean": effect**2, "estimate": estimate,
                        "log_change": change,
                    }
                )  # fmt: skip
                tokens += [
                    {
                        **at, "query": 2 + place, "query_token": ("c", " the")[place], "token": token,
                        "log_probability": -0.5 - 0.25 * place, "log_change": change * (0.75 - 0.5 * place),
                    }
                    for place, token in enumerate((" the", " sea") if answer else ())
                ]  # fmt: skip
        for key, weight in enumerate((0.5, 0.25, 0.25) if rows else ()):
            effect = None if key == 2 else 0.25 - 0.125 * key
            named = {"query": 2, "query_token": "c", "key": key, "key_token": "abc"[key]}
            change = 0.125 - weight if answer and effect else None
            keys.append(
                {
                    **at, **named, "weight": weight, "norm_share": 0.5 * weight, "effect": effect,
                    "log_change": change,
                }
            )  # fmt: skip
    made = written(Influence, table=table, answer_tokens=tokens, hidden_keys=keys)
    settings = {"outcome": outcome, "decision": answer}
    return replace(made, provenance={**RECORD, "settings": settings})


def scored(texts=3, tolerances=("0", "1%")):
    """Two patterns of four heads, half of whose ends fall by an eighth with a tolerance; sequences stand apart."""
    table = [
        {
            "text": text, "layer": layer, "head": head, "kind": "decoder", "tolerance": tolerance, "rows": 4 + text,
            "corpus": "repeated" if text == 2 else "texts", "pattern": pattern, "score": score,
            "lo": max(score - 0.25 * head - 0.125 * looser, 0.0), "hi": min(score + 0.25 * head, 1.0),
            "largest": score, "certified": 0.5 * score,
        }
        for text in range(texts)
        for layer in (0, 1)
        for head in (0, 1)
        for looser, tolerance in enumerate(tolerances)
        for place, pattern in enumerate(("previous", "induction"))
        for score in [0.5 * layer + 0.125 * head + 0.25 * place + 0.0625 * (text % 2)]
    ]  # fmt: skip
    made = written(PatternScores, table=table)
    return replace(made, provenance={**RECORD, "seed": 0, "settings": {"least_score": 0.4}})


def inverted(texts=2, causal=True, bits=(3, 4)):
    """Three tokens at two layers; errors fall by half with each bit, margins with each layer."""
    table, noises = [], []
    names = [f"int{one}" for one in bits] + ["bfloat16", "0.01"]
    places = [(place, NEXT if causal else SINGLE) for place in range(3)]
    for text in range(texts):
        for layer in (0, 2):
            intact = dict.fromkeys(names, causal)
            for place, change in places:
                at = {"text": text, "layer": layer, "position": place, "change": change}
                margin = 2.0 / (1 + layer + place) - 0.25 * text
                table.append({
                    **at, "token": "abc"[place], "norm": 4.0, "margin": margin, "relative_margin": margin / 4,
                    "forward_noise": 0.125, "rival": "xyz"[place],
                })  # fmt: skip
                for name in names:
                    number = int(name[3:]) if name.startswith("int") else None
                    error = 0.0625 if number is None else 4.0 / 2**number
                    below = error < margin - 0.125
                    intact[name] &= below
                    right = below or place == 1
                    noises.append({
                        **at, "noise": name, "bits": number, "error": error, "below": below, "certified": intact[name],
                        "decoded": ("abc" if right else "xyz")[place] if causal else None,
                        "recovered": right if causal else None,
                    })  # fmt: skip
    made = written(Inversion, table=table, noises=noises)
    settings = {"noise": ["int3", "bfloat16", "0.01"], "stored": "states", "risk": 0.001}
    return replace(made, provenance={**RECORD, "settings": settings})


def identified(experiment="same-layer", folds=2):
    """Rates of two probes on layers 1 to 3; those of the second fold are larger by 0.1."""
    table = []
    for probe, distance in (("naive", "cosine"), ("linear", "l2")):
        for cell in _cells(experiment):
            for fold in range(folds):
                rate = 0.75 - 0.125 * cell["layer_tested"] + 0.125 * (probe == "linear")
                rate -= 0.0625 * abs(cell["offset"]) + 0.03125 * (cell["offset"] < 0)
                rate -= 0.25 * (1 - cell["share"])
                rate -= 0.03125 * abs(cell["layer_trained"] - cell["layer_tested"])
                trained = {} if probe == "naive" else {
                    "train_rate": 0.875, "validation_loss": 0.5, "learning_rate": 0.01 * (1 + fold),
                    "epochs": 7 + fold, "best_epoch": 5, "converged": fold == 0, "train_tokens": 700,
                }  # fmt: skip
                table.append({
                    **cell, "experiment": experiment, "probe": probe,
                    "distance": distance, "fold": fold, "rate": rate + 0.1 * fold,
                    "token_rate": rate + 0.125, "chance": 0.0625, "token_chance": 0.09375,
                    "tokens": 1500 + 100 * fold, "sentences": 30 + fold, **trained,
                })  # fmt: skip
    return written(TokenIdentifiability, table=table)


def _cells(experiment):
    cell = {"layer_target": 0, "offset": 0, "share": 1.0}
    for layer in (1, 2, 3):
        here = cell | {"layer_trained": layer, "layer_tested": layer}
        if experiment == "across-layers":
            yield from (here | {"layer_tested": other} for other in (1, 2, 3))
        elif experiment == "neighbours":
            yield from (here | {"offset": offset} for offset in (-2, -1, 1, 2))
        elif experiment == "data-share":
            yield from (here | {"share": share} for share in (0.5, 1.0) if layer == 3)
        elif experiment == "layer-to-layer":
            yield here | {"layer_target": layer - 1}
        else:
            yield here


def rolled(texts=5, witnesses=True):
    """Two rows of three tokens of each text, of which the first is determined within a hundredth."""
    table, rows, moved, matrices = [], [], [], {}
    for text in range(texts):
        for query, fixed in ((1, True), (2, False)):
            at = {"text": text, "query": query, "query_token": "abc"[query], "tolerance": "0"}
            for target, value in enumerate((0.5, 0.3, 0.2)):
                off = 0.004 if fixed else 0.12345 - 0.03 * target
                table.append({
                    **at, "target": target, "token": "abc"[target], "value": value, "rank": 1 + target,
                    "lo": value - off, "hi": value + off, "highest_rank": 1, "lowest_rank": 1 + 2 * target,
                })  # fmt: skip
            rows.append(
                {**at, "tokens": 3, "largest": 0, "token": "a", "certified": fixed, "gap": 1e-9}
            )
    for number, end in enumerate(("raw", "lo1", "hi1") if witnesses else ()):
        target = {"text": 0, "tolerance": "0", "target": 1, "token": "b", "end": end[:2]}
        moved += [{**target, "moved": number * 1e-7}] * (number > 0)
        for head in (0, 1):
            weights = torch.eye(3) + 0.25 * number * (head + 1)
            matrices[f"text0.layer1.head{head}.encoder.{end}"] = weights
    made = written(
        Rollouts, matrices, {0: {"encoder": list("abc")}}, table=table, rows=rows, witnesses=moved
    )
    return replace(made, provenance={**RECORD, "settings": {"queries": None}})


def audited(texts=2, kinds=("encoder",), rows=True, pearson=True, d_v=2, model=None):
    """Two layers of two heads on each text; the second head parks its attention on the first token."""
    table, drawn, effects, types, matrices = [], [], [], [], {}
    for text in range(texts):
        for kind in kinds:
            for layer in (0, 1):
                for head in (0, 1):
                    at = {"text": text, "layer": layer, "head": head, "kind": kind}
                    share = 0.125 * (1 + layer + 2 * head)
                    table.append({
                        **at, "n_query": 3, "n_key": 3 + text, "d_k": 4, "d_v": d_v, "d_model": 4, "rank": 2,
                        "nullity": 1 + text, "simplex_nullity": text, "null_share": share,
                        "simplex_null_share": share / 2, "pearson": 0.75 - share if pearson else None,
                        "reconstruction_error": 1e-9,
                        "certain_mass": 0.25 + 0.375 * layer + 0.0625 * text if rows else None,
                        "certain_mass_bfloat16": 0.125 + 0.375 * layer if rows else None,
                        "certain_mass_error": 0.03125, "certain_rows": 2 if rows else 0,
                        "output_share": (0.875, 0.125)[head], "sink": 0, "sink_token": "[CLS]",
                        "sink_mass": 0.25 + 0.5 * head, "sink_norm_share": 0.125,
                        "sink_value_norm": 0.25, "first_mass": 0.25, "learned_sink": 0.0, "stacked_rank": 3,
                    })  # fmt: skip
                    if rows:
                        effect = (0.25, 0.015625)[head] * (1 + 0.25 * text)
                        effects.append(
                            {**at, "outcome": "prediction", "by": "removal", "effect": effect}
                        )
                    for query in (0, 2) if rows else ():
                        drawn.append({
                            **at, "query": query, "certain_mass": 0.25 + 0.375 * layer + 0.0625 * text,
                            "certain_mass_bfloat16": 0.125 + 0.375 * layer,
                            "sink_weight": 0.5, "sink_lo": 0.25 + 0.25 * head, "sink_hi": 0.75,
                        })  # fmt: skip
                    if text == 0:
                        raw = torch.tensor(
                            [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.75, 0.0, 0.25]]
                        )
                        key = f"text0.layer{layer}.head{head}.{kind}"
                        matrices |= {
                            f"{key}.raw": raw.roll(head, 1),
                            f"{key}.effective": raw - share,
                        }
        for kind in kinds if text == 0 else ():
            for layer in (0, 1):
                for head in (0, 1):
                    for query, key, raw in (("[CLS]", "[CLS]", 0.5), ("[CLS]", "other", 0.5), ("other", "[CLS]", 0.25),
                                            ("other", "other", 0.75)):  # fmt: skip
                        types.append({
                            "kind": kind, "layer": layer, "head": head, "query_type": query, "key_type": key,
                            "queries": 1 if query == "[CLS]" else 3, "raw": raw + 0.125 * layer,
                            "effective": raw - 0.25 * head,
                        })  # fmt: skip
    tokens = {0: {"encoder": ["[CLS]", "b", "c"], "decoder": ["x", "y", "z"]}}
    made = written(
        Audit, matrices, tokens, table=table, rows=drawn, effects=effects, token_types=types
    )
    return replace(made, provenance={**RECORD, "model": {**RECORD["model"], **(model or {})}})


def answered(texts=2, bounded=2, tolerances=("0", "bfloat16")):
    """Answers of two tokens by two layers of two heads; masses are quarters and eighths, one row of four is bounded.

    The second conversation has no document. Ends are an eighth below the mass, and twice as much with a rounding.
    Without the document, tokens keep an eighth and a quarter of their probability, without the question most of it.
    """
    table, positions, needed = [], [], []
    for text in range(texts):
        names = ["template", "question", *["document"][text:], "answer so far"]
        tokens = [*zip(("<bos>", "who", "ferry"), names, strict=False), (" no", names[-1])]
        tokens = [*tokens, (" ferry", names[-1])]
        for position, (token, segment) in enumerate(tokens):
            at = position - len(tokens) + 2
            likely = {"answer": at, "probability": 0.5, "rank": 1 + at} if at >= 0 else {}
            positions.append(
                {"text": text, "position": position, "token": token, "segment": segment, **likely}
            )
        needed += [
            {
                "text": text, "segment": segment, "token": token, "word": tokens[token - 2][0],
                "probability": 0.5, "without": without[token],
            }
            for segment, without in (("question", (0.375, 0.5)), ("document", (0.0625, 0.25)))
            for token in (0, 1)
            if segment in names
        ]  # fmt: skip
        for token in (0, 1):
            for layer in (0, 1):
                for head in (0, 1):
                    at = {"text": text, "layer": layer, "head": head, "kind": "decoder"}
                    at["query"] = len(tokens) - 3 + token
                    masses = [0.25, 0.125 + 0.125 * layer, 0.375 - 0.125 * head, 0.125 * token]
                    masses = masses if text == 0 else [0.5, 0.25 + 0.125 * head, 0.125 * token]
                    rows = [
                        {**at, "functional": name, "value": mass}
                        for name, mass in zip(names, masses, strict=True)
                    ]
                    if head != token or not bounded:
                        table += rows
                        continue
                    for size, tolerance in enumerate(tolerances, 1):
                        table += [
                            {
                                **row,
                                "tolerance": tolerance,
                                "lo": max(row["value"] - 0.125 * size - layer / 30, 0.0),
                                "hi": min(row["value"] + 0.0625 * size + 0.0625 * layer, 1.0),
                            }
                            for row in rows
                        ]
    return written(Answers, table=table, positions=positions, needed=needed)


def mixed(texts=2, kind="encoder"):
    """Three layers in which each token keeps three quarters, a half and a quarter of itself."""
    arrays = []
    for n in (4, 5)[:texts]:
        layers = [[_row(n, j, own) for j in range(n)] for own in (0.75, 0.5, 0.25)]
        layers[2][1] = [1.0 if i == 0 else 0.0 for i in range(n)]
        arrays.append(layers)
    return mixing_of(
        arrays, [["[CLS]", "red", "sky", "[SEP]"], ["[CLS]", "a", "b", "c", "[SEP]"]], kind
    )


def _row(n, j, own):
    """Return the contributions to a hidden state: to its own token, and the more to others the later they stand."""
    others = n * (n + 1) / 2 - (j + 1)
    return [own if i == j else (1 - own) * (i + 1) / others for i in range(n)]
