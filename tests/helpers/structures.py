"""Structure analyses of a tiny model, for tests of what is made from them."""

from dataclasses import replace

import polars as pl
import torch

from helpers.zoo import build, ids
from identilens.models.lens import Lens
from identilens.studies.structure.result import Structure
from identilens.studies.structure.study import structure


def structure_of(count=9, clusters=3):
    """The structure of texts of twelve tokens, without pairs and perturbations."""
    return structure(
        Lens(build("bert")), [ids(14, seed) for seed in range(count)],
        length=12, clusters=clusters, compared_pairs=0, perturbed=0,
    )  # fmt: skip


def by_hand(kinds=("encoder",), measured=True):
    """A structure analysis of two heads a kind whose numbers are written down here, without a model.

    Unless ``measured``, there are no pairs, projections, perturbations, and no W of other numbers of texts.
    """
    places = [(kind, 0, head) for kind in kinds for head in (0, 1)]
    rows = {name: [] for name in Structure.schema}
    matrices = {}
    for at, where in enumerate(places):
        odd = at % 2
        kernels = (3, 2, 4, 2, 0.4, 3 - odd, 1 + odd, 2 + odd)
        rows["table"].append((*where, *kernels, 2.0 + 0.5 * odd, 2 * odd, odd, 0.5))
        for texts in (1, 2, 4):
            rows["growth"].append((*where, texts, texts - odd, 1, 2 + odd))
        for text in range(4):
            rows["texts"].append(
                (text, *where, 2 + text % 2, 1.0, 0.1 * text, 1e-12, 0.25 + 0.5 * odd)
                + ((0.125, -0.5, 1e-10) if odd else (0.0, 0.0, 3e-10))
            )
        for text in (0, 2):
            rows["pairs"].append(
                (text, text + 1, *where, 1 - odd, 0.5, 0.25, 0.125, 0.0, 0.75 - 0.25 * text)
                + ((None,) if odd else (text == 0,))
            )
        for clusters in (2, 4):
            rows["stability"].append((*where, clusters, 0.5 / clusters + 0.5 * odd, None))
        for number, share in enumerate((0.25, 0.5, None)):
            for draw in (0, 1):
                size = number + 1.0 + draw
                changes = (size, -size, size, 1.0 / size, number + 1.0, 2 * size, size**2 / 16)
                rows["perturbations"].append((0, *where, "aware", draw, share, *changes))
    rows["clusters"] = [(2, 0.5, True), (4, 0.25, False), (5, None, False)]
    rows["representatives"] = [(2, 0, 3, "a b c"), (1, 1, 1, "d e f")]
    for kind in kinds:
        mean = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], [0.0, 0.1, 0.9]])
        raw = torch.stack([mean, mean.flip(0)])
        for number, name in enumerate(("raw", "effective", "all_raw", "all_effective")):
            matrices[f"{kind}.layer0.{name}"] = raw.roll(number, 2)
        matrices[f"{kind}.layer0.visibility"] = torch.diag_embed(
            torch.tensor([[1.0, 0.5, 0.5], [0.5, 0.5, 0.75]])
        )
    if not measured:
        rows |= {name: [] for name in ("pairs", "stability", "perturbations")}
        rows["texts"] = [(*row[:-3], None, None, None) for row in rows["texts"]]
    tables = {
        name: pl.DataFrame(held, schema=Structure.schema[name], orient="row")
        for name, held in rows.items()
    }
    record = {
        "model": {"name": "toy"},
        "texts": {"count": 4},
        "settings": {"special_positions": [0]},
    }
    return replace(Structure.of(tables, record), matrices=matrices)
