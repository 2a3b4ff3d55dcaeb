"""The result of looking into saved Dyck models."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl

from identilens.lab.dyck.train.result import DyckRuns


@dataclass(frozen=True, kw_only=True)
class DyckAnalysis(DyckRuns):
    """What `DyckRuns` contains of trained models, for models that were saved; there are no training losses."""

    analysis: ClassVar = "lab dyck analyse"
    title: ClassVar = "Saved Dyck transformers"

    def overview(self) -> dict[str, pl.DataFrame]:
        """Return what is shown of trained models, and every head."""
        return super().overview() | {"Heads": self.heads.drop("setting")}
