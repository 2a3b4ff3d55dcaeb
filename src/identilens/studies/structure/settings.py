"""Options of structure."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le, Lt
from cyclopts import Parameter

from identilens.errors import SettingError
from identilens.runs.settings import NonNegative, Positive, Settings, TwoOrMore

Cut = Literal["clip", "window"]
Shorter = Literal["error", "skip"]


@dataclass(frozen=True, kw_only=True)
class StructureSettings(Settings):
    """How texts are cut to one length, and how the structure of their attention is computed.

    Attributes:
        length: Number of tokens of every text, special tokens included.
        cut: Use the start of each text (clip), or all its windows of this length (window).
        shorter: What happens to texts that are too short: stop with an error (error), or leave them out (skip).
        threshold: l of Eq. 8: smaller weights are cut. Default: 2/n on the mean, twice the uniform weight.
        scale: Whether l refers to the mean or to the sum of the representatives' weights.
        penalty: Share of a cut weight that remains: h(x) = penalty · x.
        clusters: Number of representative texts. Default: the number with the largest silhouette.
        pool: Largest number of texts, drawn at random, from which representatives are chosen.
        compared_pairs: Number of pairs of texts whose null spaces are compared.
        perturbed: Number of representatives whose weights are perturbed and put back into the model.
        seed: Seed of clusters, pool and perturbations.
    """

    length: Annotated[int, Ge(2), Le(2**31 - 2), Parameter(alias="-n")]
    cut: Cut = "clip"
    shorter: Shorter = "error"
    threshold: Annotated[float | None, Ge(0)] = None
    scale: Literal["mean", "sum"] = "mean"
    penalty: Annotated[float, Ge(0), Lt(1)] = 0.0
    clusters: Positive | None = None
    pool: TwoOrMore = 2000
    compared_pairs: NonNegative = 50
    perturbed: NonNegative = 2
    seed: NonNegative = 0

    def check(self) -> None:
        """Check that the threshold leaves something."""
        most = 1 if self.scale == "mean" else self.clusters
        if self.threshold is not None and most is not None and self.threshold > most:
            raise SettingError(
                "threshold", f"in [0, {most}] on the {self.scale} of the weights", self.threshold
            )
