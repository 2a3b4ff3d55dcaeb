"""Small runs of certificates, alternatives and logit ranks."""

import polars as pl

import identilens as idl
from golden.common import CONDITIONED, maps, tiny
from golden.stored import Case
from helpers.chats import MESSAGES, tokenizer
from helpers.zoo import ids


def certify(lens, texts, **options):
    found = idl.certify(lens, texts, tolerance=0, **options)
    table = found.table.rename({"value": "weight"})
    return {"table": table, "rows": found.rows}


def alternatives(lens, texts, *kept, **options):
    found = idl.alternatives(lens, texts, **options)
    return {"table": found.table, **maps(found.matrices, *kept)}


def faithfulness(lens, texts, **options):
    """The noise floor holds rounding noise only, and is left out."""
    found = idl.faithfulness(
        lens, texts, groups=(1, 2), searched=4, alternatives=2, draws=1, **options
    )
    table = found.table.rename({"parts": "n_key"})
    columns = (*found.determinacy.columns[:5], "n_key", "intervention", "outcome", "explanation")
    measures = "correlation", "aopc", "naopc"
    return {"table": table.select(*columns, *measures), "determinacy": found.determinacy}


def answer():
    lens = tiny("llama")
    lens.tokenizer = tokenizer("chatml")
    messages = [*MESSAGES, {"role": "assistant", "content": "nobody came."}]
    found = idl.answer(lens, messages, bounded=3, tolerance=(0, "bfloat16"))
    token = pl.col("query") - pl.col("query").min()
    table = found.table.select(
        "text", "layer", "head", "tolerance", "lo", "hi",
        token=token, segment="functional", mass="value",
    )  # fmt: skip
    table = table.filter(~pl.col("segment").str.contains("−"))
    whole = table.unique(["token", "layer", "head", "segment"], keep="first", maintain_order=True)
    return {
        "table": whole.drop("tolerance", "lo", "hi"),
        "intervals": table.drop_nulls("lo"),
        "positions": found.positions,
    }


def patterns(lens, texts, **options):
    found = idl.patterns(lens, texts, rows=2, **{"tolerance": 0} | options)
    return {"table": found.table, "by_head": found.by_head()}


def sources(lens, texts, **options):
    """How far the farthest alternative met is depends on which programs were run, and is left out."""
    found = idl.certify(lens, texts, queries="last", **options)
    row = ["text", "query", "query_token", "tolerance", "layer", "head"]
    claims = found.claims.rename({"value": "contribution"})
    table = pl.concat(
        [
            claims.select(*row, "contribution", "lo", "hi"),
            found.weights.select("key", "token", weight="value"),
        ],
        how="horizontal",
    )
    size = pl.col("contribution").abs()
    largest = {name: pl.col(name).sort_by(size).last() for name in ("key", "token")}
    groups = table.group_by(row, maintain_order=True)
    rows = groups.agg(pl.col("contribution").sum(), **largest).rename({"key": "largest"})
    return {
        "table": table.with_columns(coefficient=pl.col("contribution") / pl.col("weight")),
        "rows": rows,
    }


CASES: dict[str, Case] = {
    "answer_causal": Case(answer, CONDITIONED, local=True),  # 4 s
    "certify_causal": Case(
        lambda: certify(tiny("gpt2"), [ids(20)], layers=0, heads=1, queries=(0, 8, 12, 19))
    ),  # 0.1 s
    "certify_cross": Case(
        lambda: certify(tiny("t5"), [ids(16)], layers=0, heads=2, kind="cross", queries=(0, 5)),
        CONDITIONED,
        local=True,
    ),  # 0.1 s
    "alternatives_encoder": Case(
        lambda: alternatives(
            tiny("bert"),
            [ids(12)],
            "text0.layer0.head1.encoder",
            layers=0,
            heads=1,
            realisable=True,
        )
    ),  # 0.2 s
    "alternatives_causal": Case(
        lambda: alternatives(tiny("gpt2"), [ids(18)], layers=1, heads=0)
    ),  # 0.2 s
    "logit_ranks_encoder": Case(
        lambda: {
            "table": idl.lab.logit_ranks(tiny("bert"), [ids(16), ids(9, 1), ids(30, 2)], count=20)
        }
    ),  # 0.2 s
    "faithfulness_encoder": Case(
        lambda: faithfulness(tiny("bert"), [ids(14), ids(12, 1)], maps=2, rows=2),
        CONDITIONED,
        floor=1e-9,
    ),  # 0.5 s
    "patterns_causal": Case(
        lambda: patterns(
            tiny("llama"),
            [[*ids(9), *ids(9)]],
            layers=1,
            heads=3,
            tolerance=(0, "1%"),
            pattern="previous,induction",
        ),
        relative=1e-6,
        floor=1e-9,
    ),  # 3 s
    "certify_source": Case(
        lambda: sources(tiny("gpt2"), [ids(20)], source=("5", "9"), tolerance=(0, "1%")),
        relative=1e-6,
        floor=1e-9,
    ),  # 1.2 s
}
