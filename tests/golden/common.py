"""Models and texts that small runs of several studies share; tiny models run in double precision, so that tables are
the same to 1e-12, the bundled encoder in single."""

from functools import cache

import polars as pl
import torch

import identilens as idl
from helpers.heads import seeded
from helpers.zoo import build, ids

SHORT = "Rain."
LONG = (
    "When the last ferry had left the harbour, the keeper of the lighthouse climbed the stairs once more, trimmed the "
    "lamp, and wrote into his book that the wind had turned to the north, that two boats were still out beyond the "
    "reef, and that nobody in the village would sleep before both of them were home again."
)
REPEATED = " ".join(["storm"] * 20)
TEXTS = [SHORT, "The old bridge was closed in winter.", REPEATED, LONG]
PAIR = ("A storm closed the pass.", "Snow shut it.")
TOKENS = [ids(3), ids(9, 1), [7] * 12, ids(24, 2), ids(60, 3)]
SENTENCES = [ids(4 + seed % 7, seed) for seed in range(30)]

CONDITIONED = 1e-11
"""Relative tolerance where a small null space, or a search, makes more of the last digit."""


def tiny(family, seed=0):
    """A lens on a tiny random model in double precision."""
    return idl.Lens(drawn(build(family, seed), seed), name=f"tiny {family}")


@torch.no_grad()
def drawn(model, seed):
    """The model with weights made of whole numbers: torch's normal numbers depend on the processor."""
    generator = seeded(seed)
    for parameter in model.double().parameters():
        # Sums of three even draws: near normal, with standard deviation 0.25 for matrices.
        numbers = torch.randint(-64, 65, (3, *parameter.shape), generator=generator).sum(0).double()
        parameter.copy_(numbers / 256 if parameter.ndim > 1 else parameter.round() + numbers / 640)
    return model.eval()


@cache
def real():
    """A lens on the bundled encoder."""
    return idl.load(idl.bundled_model(), device="cpu")


def maps(matrices, *prefixes):
    """Return kept maps as tables: one for each prefix, a row a query and key, a column a kind of weights."""
    found: dict[str, pl.DataFrame] = {}
    for prefix in prefixes:
        held = {
            name.removeprefix(f"{prefix}."): matrices[name]
            for name in matrices
            if name.startswith(f"{prefix}.")
        }
        wanted = {
            name: one
            for name, one in held.items()
            if name in ("raw", "effective") or "alternative" in name
        }
        found[prefix.replace(".", "_")] = pl.DataFrame(
            {name: one.flatten().numpy() for name, one in wanted.items()}
        )
    return found
