"""Options of structure."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from cyclopts import Parameter

from identilens.runs.settings import NonNegative, Positive, Settings, TwoOrMore


@dataclass(frozen=True, kw_only=True)
class StructureSettings(Settings):
    """Length of the texts, and how the structure of their attention is computed.

    Attributes:
        length: Number of tokens of every text, special tokens included; shorter texts are left out.
        threshold: l of Eq. 8: smaller weights are cut. Default: 2/n on the mean, twice the uniform weight.
        clusters: Number of representative texts. Default: the number with the largest silhouette.
        pool: Largest number of texts, drawn at random, from which representatives are chosen.
        compared_pairs: Number of pairs of texts whose null spaces are compared.
        perturbed: Number of representatives whose weights are perturbed and put back into the model.
        seed: Seed of clusters, pool and perturbations.
    """

    length: Annotated[int, Ge(2), Le(2**31 - 2), Parameter(alias="-n")]
    threshold: Annotated[float | None, Ge(0), Le(1)] = None
    clusters: Positive | None = None
    pool: TwoOrMore = 2000
    compared_pairs: NonNegative = 50
    perturbed: NonNegative = 2
    seed: NonNegative = 0
