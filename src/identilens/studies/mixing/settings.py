"""Options of mixing."""

from dataclasses import dataclass
from typing import Annotated, Literal

from identilens.errors import SettingError
from identilens.runs.conllu import Tags
from identilens.runs.settings import (
    NOT_RECORDED,
    NonNegative,
    Numbers,
    Positions,
    Positive,
    Settings,
    TwoOrMore,
)


@dataclass(frozen=True, kw_only=True)
class MixingSettings(Settings):
    """How norms are computed, and which tables are added.

    Attributes:
        queries: Position (or several, 3,10-12) or token whose hidden states are looked at, in time for these alone; all
            by default. A token selects every position where it occurs; last is the last position, negative positions
            count from the end.
        layers: Layers in the result; 1 is the first layer's output. All by default. Fewer layers save space, not time.
        method: Exact norms (exact), or a sketch by random probes with standard errors, about ten times as fast.
        sketch_probes: Number of probes for each token in a sketch; 32 by default.
        max_length: Cut longer texts to this many tokens.
        rollouts: Add raw and effective attention rollout, for comparison.
        seed: Seed of the random probes.
        tags: Which tags of a treebank are used: its own (xpos) or the universal ones (upos).
        track: Show which inputs contribute to this token, layer by layer.
    """

    queries: Positions | None = None
    layers: Numbers | None = None
    method: Literal["exact", "sketch"] = "sketch"
    sketch_probes: TwoOrMore | None = None
    max_length: Positive | None = None
    rollouts: bool = True
    seed: NonNegative = 0
    tags: Tags = "xpos"
    track: Annotated[str | None, NOT_RECORDED] = None

    def check(self) -> None:
        """Check that no probes are given for exact norms, and for chosen positions nothing that needs all."""
        if self.queries and self.track is not None:
            raise SettingError("track", "to be left out with queries", self.track)
        if self.method == "exact" and self.sketch_probes is not None:
            raise SettingError(
                "sketch_probes", "to be left out: exact norms use no probes", self.sketch_probes
            )
