"""Measures of saved Dyck models: the same as after training."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import polars as pl
import torch

from identilens.charts.views import View
from identilens.errors import InputError
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.settings import DyckAnalyseSettings, DyckSetting, DyckTraining
from identilens.lab.dyck.train.measuring import measure_models, variation_table
from identilens.lab.dyck.train.result import DyckRuns
from identilens.lab.dyck.training import Trained
from identilens.models.loading import load
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Tables


@dataclass(frozen=True, kw_only=True)
class DyckAnalysis(DyckRuns):
    """The tables of `DyckRuns` for saved models; there are no training losses."""

    analysis: ClassVar = "lab dyck analyse"
    title: ClassVar = "Saved Dyck transformers"

    views: ClassVar = {
        **DyckRuns.views,
        "heads": View(title="Heads", table="heads", listed=True),
    }


class DyckAnalyseStudy(Study[DyckAnalyseSettings, DyckAnalysis]):
    """Measure saved models: accuracy, stack-likeness, how each head's attention is used, balance.

    The measures are those of training. In the tables, a model's number in the list takes the place of its seed.

    Raises:
        InputError: For models that are not Dyck transformers, or that have different configurations.
        OutputFolderError: If the folder contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> import tempfile
        >>> from pathlib import Path
        >>> folder = Path(tempfile.mkdtemp()) / "model"
        >>> model = idl.lab.DyckForCausalLM(idl.lab.DyckForCausalLM.config_class(hidden_size=8, max_depth=2))
        >>> model.save_pretrained(folder)
        >>> small = {"length": 8, "sequences": 10, "long_sequences": 2, "lengths": (20, 24), "draws": 1}
        >>> runs = idl.lab.analyse_dyck(models=folder, **small)
        >>> len(runs.table), len(runs.heads)
        (1, 2)
    """

    name = "lab dyck analyse"
    unit = "models"
    takes = ()
    settings_type = DyckAnalyseSettings
    result_type = DyckAnalysis

    def __init__(self, settings: DyckAnalyseSettings) -> None:
        super().__init__(settings)
        self.lenses = [load(folder, device="cpu") for folder in settings.models]
        self.models = [
            lens.model for lens in self.lenses if isinstance(lens.model, DyckForCausalLM)
        ]
        if not self.lenses or len(self.models) < len(self.lenses):
            folders = ", ".join(map(str, settings.models))
            raise InputError(
                f"expected models to be folders of Dyck transformers; got {folders or 'none'}."
            )
        options = [
            {name: getattr(model.config, name) for name in DyckConfig.__annotations__}
            for model in self.models
        ]
        if any(other != options[0] for other in options):
            raise InputError(
                "expected models of one configuration, got several; analyse them one kind at a time"
            )
        training = DyckTraining(length=settings.length, data=settings.data)
        self.kind = DyckSetting("models", options[0], training)

    def identity(self) -> Identity:
        """Return the models."""
        name = ", ".join(map(str, self.settings.models))
        return Identity(
            {"name": name, "digest": self.lenses[0].digest}, [lens.digest for lens in self.lenses]
        )

    def sizes(self) -> Sequence[int]:
        """Return one part with all models."""
        return [len(self.models)]

    def finish(self, tables: Tables) -> Output:
        """Return the tables, one of them joined over all parts."""
        return Output({**tables, "variation": variation_table(tables["variation"])})

    def run(self, part: int) -> Output:
        """Return the measures of all models."""
        count = len(self.models)
        trained = Trained(self.models, tuple(range(count)), torch.full((1, count), float("nan")))
        tables = dict(measure_models(self.kind, trained, self.settings, "cpu"))
        # How the models were trained is not known.
        unknown = ("learning_rate", "weight_decay", "contrast", "epochs")
        tables["table"] = tables["table"].with_columns(
            pl.lit(None, tables["table"][name].dtype).alias(name) for name in unknown
        )
        return Output(tables)


analyse_dyck = study_function(DyckAnalyseStudy, "analyse_dyck")
