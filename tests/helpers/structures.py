"""Structure analyses of a tiny model, for tests of what is made from them."""

from dataclasses import replace

import polars as pl

from helpers.zoo import build, ids
from identilens.models.lens import Lens
from identilens.studies.structure.study import structure

SCRIPT = "<script>alert(1)</script>"


def structure_of(pairs=3, perturbed=1, tokens=None, family="bert", count=9, clusters=3):
    """The structure of nine texts of twelve tokens, the representatives' tokens replaced where given."""
    found = structure(
        Lens(build(family), name=f"models/{SCRIPT}"), [ids(14, seed) for seed in range(count)],
        length=12, clusters=clusters, compared_pairs=pairs, perturbed=perturbed,
    )  # fmt: skip
    if tokens is None:
        return found
    return replace(found, representatives=found.representatives.with_columns(tokens=pl.lit(tokens)))
