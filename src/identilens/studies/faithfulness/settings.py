"""Settings of the faithfulness bench."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge

from identilens.errors import SettingError
from identilens.runs.settings import LIST, Numbers
from identilens.studies.heads import KindSettings

Intervention = Literal["zero", "renormalise"]


@dataclass(frozen=True, kw_only=True)
class FaithfulnessSettings(KindSettings):
    """Which maps and rows are drawn, and how explanations of them are tested.

    Attributes:
        maps: Number of attention maps drawn from each text.
        rows: Number of rows drawn from each map.
        interventions: Set weights to zero (zero), or also scale the other weights of the row to sum to 1 (renormalise).
        groups: Sizes of the groups of keys that are removed together, smallest first.
        beam: Width of the beam that searches the best and the worst order.
        searched: Number of keys from which that search chooses; at least the largest group.
        alternatives: Number of alternatives drawn of each row.
        explained: Number of final hidden states of each text for which explanations by input tokens are tested too.
        attribution: Among these gradient × input, integrated gradients and occlusion, which need captum.
        seed: Seed of the random numbers.
    """

    maps: Annotated[int, Ge(1)] = 1
    rows: Annotated[int, Ge(1)] = 2
    interventions: Annotated[tuple[Intervention, ...], LIST] = ("zero", "renormalise")
    groups: Numbers = (1, 2, 4, 8)
    beam: Annotated[int, Ge(1)] = 1
    searched: Annotated[int, Ge(1)] = 16
    alternatives: Annotated[int, Ge(1)] = 4
    explained: Annotated[int, Ge(0)] = 0
    attribution: bool = False
    seed: Annotated[int, Ge(0)] = 0

    def check(self) -> None:
        """Check that groups grow, that the search can choose the largest, and that attribution has something to do."""
        if self.attribution and not self.explained:
            raise SettingError("attribution", "to be left out, or explained of at least 1", self.attribution)
        if list(self.groups) != sorted(set(self.groups)) or not self.groups or self.groups[0] < 1:
            raise SettingError("groups", "as growing sizes of at least 1, such as 1,2,4,8", self.groups)
        if self.searched < self.groups[-1]:
            raise SettingError("searched", f"of at least the largest group, {self.groups[-1]}", self.searched)
