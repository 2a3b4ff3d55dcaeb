"""Small audits, and small runs of every token identifiability experiment."""

from typing import Any

import polars as pl

import identilens as idl
from golden.common import CONDITIONED, SENTENCES, TEXTS, TOKENS, maps, real, tiny
from golden.stored import Case, single
from helpers.zoo import ids


def audit(lens, texts, *kept, **options):
    found = idl.audit(lens, texts, matrices=bool(kept), **options)
    return {"table": found.table, "token_types": found.token_types, **maps(found.matrices, *kept)}


def audit_bundled():
    found = idl.audit(real(), TEXTS, matrices=True)
    types = found.token_types.filter(pl.col("head") % 4 == 0)
    means = {
        "by_layer": found.by_layer(),
        "by_length": found.by_length(),
        "received": found.received().filter(pl.col("layer") == 2),
    }
    return {
        "table": found.table, "token_types": types, **means,
        **maps(found.matrices, "text1.layer3.head10.encoder", "text2.layer0.head2.encoder"),
    }  # fmt: skip


def rounded(run):
    """Return a case with nearly square values, whose shares and reconstruction errors of 0 are rounding."""
    return Case(run, relative=CONDITIONED, noise=1e-9, floor=1e-12)


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
    "audit_bundled": single(audit_bundled),  # 0.6 s
    "audit_encoder": Case(
        lambda: audit(tiny("bert"), TOKENS, "text3.layer1.head2.encoder")
    ),  # 0.1 s
    "audit_grouped": Case(lambda: audit(tiny("llama"), TOKENS), local=True),  # 0.2 s
    "audit_cross": rounded(lambda: audit(tiny("t5"), TOKENS, "text1.layer0.head1.cross")),  # 0.3 s
    "tokens_same_layer": single(
        lambda: tokens("same-layer", tiny("bert"), SENTENCES, probes=("naive", "linear", "mlp")),
        False,
    ),  # 0.2 s
    "tokens_neighbours": single(
        lambda: tokens("neighbours", tiny("bert"), SENTENCES, probes=("mlp",), offsets=(-2, 1)),
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
