"""Small audits."""

import polars as pl

import identilens as idl
from golden.common import CONDITIONED, TEXTS, TOKENS, maps, real, tiny
from golden.stored import Case, single


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


CASES: dict[str, Case] = {
    "audit_bundled": single(audit_bundled),  # 0.6 s
    "audit_encoder": Case(
        lambda: audit(tiny("bert"), TOKENS, "text3.layer1.head2.encoder")
    ),  # 0.1 s
    "audit_grouped": Case(lambda: audit(tiny("llama"), TOKENS), local=True),  # 0.2 s
    "audit_cross": rounded(lambda: audit(tiny("t5"), TOKENS, "text1.layer0.head1.cross")),  # 0.3 s
}
