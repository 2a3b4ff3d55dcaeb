"""Training of Dyck transformers, and measures of them (Wen et al. 2023, section 4, B.1, D)."""

from collections.abc import Sequence
from functools import partial

from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.settings import DyckSetting, DyckTrainSettings
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.lab.dyck.train.measuring import measure_models, variation_table
from identilens.lab.dyck.train.result import DyckRuns
from identilens.lab.dyck.training import train_models
from identilens.models.saving import save_model
from identilens.runs.files import write_folder
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import Tables


class DyckTrainStudy(Study[DyckTrainSettings, DyckRuns]):
    """Train Dyck transformers from several seeds at once and measure them (Wen et al. 2023, section 4, B.1, D).

    For each seed: accuracy in distribution and on long prefixes, by both measures; attention on the prefix with all
    brackets at all depths, and its variation over seeds; how stack-like each head looks, and the effect of changing
    its attention; with a minimal first layer, the balance violation. Models are saved to ``models`` in the folder.

    Args:
        kinds: Several kinds of models (`identilens.lab.dyck.settings.DyckSetting`) instead of the one that the settings
            describe; only in Python.

    Raises:
        InputError: For settings or seeds that cannot be used.
        NumericalError: If a loss is not finite.
        OutputFolderError: If the folder contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> runs = idl.lab.train_dyck(
        ...     seeds=(0, 1), length=8, depth=2, hidden=8, tokens=400, epochs=2, batch_size=25,
        ...     sequences=10, long_sequences=2, lengths=(20, 24), head_sequences=5, draws=1,
        ... )
        >>> runs.table.select("seed", "epochs").rows(), len(runs.curves)
        ([(0, 2), (1, 2)], 4)
    """

    name = "lab dyck train"
    unit = "seeds"
    settings_type = DyckTrainSettings
    result_type = DyckRuns

    def __init__(
        self, kinds: Sequence[DyckSetting] | None = None, *, settings: DyckTrainSettings
    ) -> None:
        super().__init__(settings)
        self.kinds, seeds = kinds or [settings.kind()], settings.seeds
        size = settings.at_once or len(seeds)
        self.parts = [
            (kind, seeds[start : start + size])
            for kind in self.kinds
            for start in range(0, len(seeds), size)
        ]

    def identity(self) -> Identity:
        """Return the kinds of models and their training."""
        described = list(map(repr, self.kinds))
        return Identity(
            {"name": "Dyck transformers", "device": self.settings.device},
            described,
            {"settings": described},
        )

    def sizes(self) -> Sequence[int]:
        """Return the seeds of each part."""
        return [len(seeds) for _, seeds in self.parts]

    def finish(self, tables: Tables) -> Output:
        """Return the tables, with the variation, which needs all seeds."""
        return Output({**tables, "variation": variation_table(tables["patterns"])})

    def run(self, part: int) -> Output:
        """Train some seeds of one kind, and return their measures."""
        kind, seeds = self.parts[part]
        trained = train_models(
            DyckConfig(**kind.config),
            seeds,
            kind.training,
            device=self.settings.device,
            progress=lambda note: self.tell(f"{kind.name}: {note}"),
        )
        if self.folder:
            folder = self.folder / "models" / folder_name(kind.name)
            for seed, model in zip(seeds, trained.models, strict=True):
                write_folder(
                    folder / f"seed{seed:03d}",
                    partial(save_model, model, bracket_tokenizer(model.config.language)),
                )
        return Output(measure_models(kind, seeds, trained, self.settings))


train_dyck = study_function(DyckTrainStudy, "train_dyck")


def folder_name(setting: str) -> str:
    """Return the name of a setting's folder of models."""
    return "".join(mark if mark.isalnum() else "_" for mark in setting).strip("_").lower()
