"""Small runs of every token identifiability experiment."""

from typing import Any

import identilens as idl
from golden.common import SENTENCES, tiny
from golden.stored import Case, single
from helpers.zoo import ids

QUICK: dict[str, Any] = {
    "folds": 2, "learning_rates": (0.01, 0.003), "max_epochs": 4, "hidden_units": 16,
}  # fmt: skip


def tokens(experiment, lens, texts, **options):
    found = idl.token_identifiability(lens, texts, experiment=experiment, **{**QUICK, **options})
    kept = (
        {"means": found.means().drop("curve")} if experiment in ("same-layer", "neighbours") else {}
    )
    return {"table": found.table, **kept}


def inversion(lens, texts, **options):
    found = idl.inversion(lens, texts, **options)
    return {"table": found.table.drop("forward_noise"), "noises": found.noises}


CASES: dict[str, Case] = {
    "tokens_same_layer": single(
        lambda: tokens(
            "same-layer", tiny("bert"), SENTENCES, probes=("naive", "linear", "ridge", "mlp")
        ),
        False,
    ),  # 0.2 s
    "tokens_neighbours": single(
        lambda: tokens(
            "neighbours", tiny("bert"), SENTENCES, probes=("ridge", "mlp"), offsets=(-2, 1)
        ),
        False,
    ),  # 0.2 s
    "inversion_causal": single(
        lambda: inversion(
            tiny("gpt2"), [ids(9), ids(5)], noise=("bfloat16", "int4", 0.1), bits=(3, 6)
        ),
        False,
    ),  # 0.5 s
    "inversion_encoder": single(
        lambda: inversion(tiny("bert"), [ids(6)], noise="int4", bits=3), False
    ),  # 0.4 s
}
