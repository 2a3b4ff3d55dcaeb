"""Small structure analyses, and the reversal task."""

import polars as pl

import identilens as idl
from golden.common import tiny
from golden.stored import Case, single
from helpers.zoo import ids


def structure(lens, texts, *kept, **options):
    found = idl.structure(lens, texts, **options)
    names = (
        "table", "growth", "texts", "pairs", "clusters", "representatives", "stability", "perturbations",
    )  # fmt: skip
    weights = {
        name.replace(".", "_"): pl.DataFrame({"value": found.matrices[name].flatten().numpy()})
        for name in kept
    }
    return {
        **{name: getattr(found, name) for name in names}, **weights,
        "correlations": found.correlations(), "by_perturbation": found.by_perturbation(),
    }  # fmt: skip


def structure_encoder():
    kept = ("encoder.layer0.raw", "encoder.layer1.effective", "encoder.layer1.visibility")
    corpus = [ids(14, seed) for seed in range(9)]
    return structure(
        tiny("bert"), corpus, *kept, length=12, clusters=3, compared_pairs=3, perturbed=1
    )


REVERSAL = {"length": 5, "epochs": 1, "train": 64, "held_out": 32, "hidden": 16, "inputs": 8}


def reversal():
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


CASES: dict[str, Case] = {
    "structure_encoder": Case(structure_encoder, local=True),  # 2.3 s
    "reversal": single(reversal, False),  # 2.2 s
}
