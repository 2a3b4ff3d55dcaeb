"""Small structure analyses, and the reversal task."""

from typing import Any

import polars as pl

import identilens as idl
from golden.common import SHORT, real, tiny
from golden.stored import Case, Tables, single
from helpers.zoo import ids
from identilens.lab.reversal.task import TaskSettings
from identilens.reproduce.structure2025 import FIGURES


def structure(lens: idl.Lens, texts: Any, *kept: str, **options: Any) -> Tables:
    found = idl.structure(lens, texts, **options)
    names = (
        "table", "growth", "spectrum", "texts", "pairs", "patterns", "clusters", "representatives", "stability",
        "perturbations",
    )  # fmt: skip
    weights = {
        name.replace(".", "_"): pl.DataFrame({"value": found.matrices[name].flatten().numpy()})
        for name in kept
    }
    return {
        **{name: getattr(found, name) for name in names}, **weights,
        "correlations": found.correlations(), "by_perturbation": found.by_perturbation(),
    }  # fmt: skip


def structure_encoder() -> Tables:
    kept = ("encoder.layer0.raw", "encoder.layer1.effective", "encoder.layer1.visibility")
    corpus = [ids(14, seed) for seed in range(9)]
    return structure(
        tiny("bert"), corpus, *kept, length=12, clusters=3, compared_pairs=3, perturbed=1
    )


def structure_causal() -> Tables:
    corpus = [ids(20, seed) for seed in range(6)]
    return structure(
        tiny("gpt2"),
        corpus,
        length=10,
        cut="window",
        compared_pairs=4,
        threshold=0.3,
        scale="sum",
        penalty=0.1,
    )


def structure_bundled() -> Tables:
    places = [f"The {animal} slept under the {place} until the rain had stopped."
              for animal in ("fox", "cat") for place in ("bridge", "table", "tree")]  # fmt: skip
    found = structure(
        real(),
        [*places, SHORT],
        length=10,
        shorter="skip",
        clusters=2,
        compared_pairs=1,
        perturbed=0,
    )
    return {name: found[name] for name in ("table", "pairs", "representatives")}


REVERSAL = {"length": 5, "epochs": 1, "train": 64, "held_out": 32, "hidden": 16, "inputs": 8}


def reversal() -> Tables:
    lstm, transformer = (
        idl.lab.train_reversal(model=model, learning_rate=3e-3, **REVERSAL)
        for model in ("lstm", "transformer")
    )
    accuracy = pl.concat([lstm.table, transformer.table]).select("accuracy", "whole", "written")
    return {
        "lstm_course": lstm.course, "lstm_weights": pl.DataFrame({"weight": lstm.weights.flatten().numpy()}),
        "transformer_course": transformer.course,
        "perturbations": transformer.perturbations.filter(pl.col("text") == 0),
        "accuracy": accuracy.with_columns(pl.col("written").fill_null(float("nan"))),
        "nullity": pl.concat([lstm.heads, transformer.heads]).select("nullity"),
    }  # fmt: skip


def reversal_figures() -> Tables:
    settings = TaskSettings(**REVERSAL)
    first, second = (FIGURES[f"structure2025-figure{number}"].make(settings) for number in (1, 2))
    sweep_ = second.tables["sweep"].filter(pl.col("head") == 0)
    return {
        **{f"one_{name}": first.tables[name] for name in ("match", "attention")},
        **{f"two_{name}": second.tables[name] for name in ("best", "norms", "perturbations")},
        "two_sweep": sweep_, "accuracy": first.tables["accuracy"].drop("seconds"),
    }  # fmt: skip


CASES: dict[str, Case] = {
    "structure_encoder": Case(structure_encoder, local=True),  # 2.3 s
    "reversal": single(reversal, False),  # 2.2 s
}
