"""What a structure analysis can be told."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt
from cyclopts import Parameter

from identilens.errors import SettingError
from identilens.measures.structure.weights import Scale
from identilens.runs.settings import Settings
from identilens.studies.structure.lengths import Cut, Shorter


@dataclass(frozen=True, kw_only=True)
class StructureSettings(Settings):
    """How texts are cut to one length, and what is made of their attention.

    Attributes:
        length: Tokens of every text, special tokens included.
        cut: Keep the start of each text (clip), or all windows of the length (window).
        shorter: Texts that are too short are an error, or are left out (skip).
        threshold: l of Eq. 8: smaller weights are cut; 2/n on the mean by default, twice what uniform attention has.
        scale: Whether l is in units of the mean or of the sum of the representatives' weights.
        penalty: What is left of a weight that is cut, as a share of it: h(x) = penalty · x.
        clusters: Number of representative texts; by the largest silhouette by default.
        pool: Texts, drawn evenly, among which representatives are sought.
        compared_pairs: Pairs of texts whose null spaces are compared.
        perturbed: Representatives whose weights are perturbed and put back into the model.
        seed: Of clusters, pool and perturbations.
    """

    length: Annotated[int, Ge(2), Parameter(alias="-n")]
    cut: Cut = "clip"
    shorter: Shorter = "error"
    threshold: Annotated[float | None, Ge(0)] = None
    scale: Scale = "mean"
    penalty: Annotated[float, Ge(0), Lt(1)] = 0.0
    clusters: Annotated[int | None, Ge(1)] = None
    pool: Annotated[int, Ge(2)] = 2000
    compared_pairs: Annotated[int, Ge(0)] = 50
    perturbed: Annotated[int, Ge(0)] = 2
    seed: Annotated[int, Ge(0)] = 0

    def check(self) -> None:
        """Check that the threshold leaves something."""
        most = 1 if self.scale == "mean" else self.clusters
        if self.threshold is not None and most is not None and self.threshold > most:
            raise SettingError("threshold", f"in [0, {most}] on the {self.scale} of the weights", self.threshold)
