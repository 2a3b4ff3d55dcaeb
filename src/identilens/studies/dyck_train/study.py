"""Settings in, results out: Dyck transformers trained, measured and looked into."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from identilens.dyck.configuration import DyckConfig
from identilens.dyck.modeling import DyckForCausalLM
from identilens.dyck.settings import DyckSetting, DyckTraining
from identilens.dyck.tokenizer import bracket_tokenizer
from identilens.dyck.training import Trained, check_memory, train_models
from identilens.errors import InputError
from identilens.models.loading import load
from identilens.models.saving import save_model
from identilens.results.dyck import ANALYSIS, TABLES, DyckRuns
from identilens.results.parts import Tables, run_parts, whole
from identilens.results.provenance import provenance
from identilens.studies.dyck_train.measuring import Measuring, measure_models, variation_table

Watch = Callable[[str], None]


def train_dyck(
    settings: Sequence[DyckSetting],
    seeds: Sequence[int] = tuple(range(10)),
    *,
    at_once: int | None = None,
    measuring: Measuring | None = None,
    device: str | torch.device = "cpu",
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
    watch: Watch | None = None,
) -> DyckRuns:
    """Return what becomes of Dyck transformers trained from several seeds (Wen et al. 2023, section 4, B.1, D).

    For each setting and seed: accuracy in distribution and on long prefixes, by both measures; attention on the prefix
    with all brackets at all depths, and its variation over seeds; how stack-like each head looks and what changing its
    attention does; behind a minimal first layer, the balance violation.

    Args:
        settings: What to train.
        seeds: Of initial weights and batches, the same for every setting.
        at_once: Seeds in one stack; all when not given.
        measuring: How much is measured on.
        device: Where to train.
        out: Folder to fill, stack by stack; models go to ``models/`` in it, one folder each. Nothing is written when
            not given.
        resume: Go on with an interrupted run in ``out``.
        overwrite: Drop the run that ``out`` holds.
        progress: Called with (seeds done, seeds in all), counting every setting.
        watch: Called with a line on what is being done.

    Raises:
        InputError: For settings or seeds that cannot be used, or more seeds at once than memory allows.
        NumericalError: If a loss is not finite.
        OutputFolderError: If the folder holds something else or cannot be written.
    """
    measuring = measuring or Measuring()
    size = len(seeds) if at_once is None else at_once
    _check(settings, seeds, size, device)
    parts = [
        (setting, list(seeds[start : start + size])) for setting in settings for start in range(0, len(seeds), size)
    ]
    described = [json.dumps({"name": one.name, "config": one.config} | asdict(one.training)) for one in settings]
    record = provenance(
        ANALYSIS,
        model={"name": "Dyck transformers", "device": str(device)},
        texts=described,
        settings={"settings": described, "seeds": list(seeds), "at_once": size, **asdict(measuring)},
    )

    def run(part: int) -> Tables:
        setting, own = parts[part]
        trained = train_models(setting.make(), own, setting.training, device=device, progress=_told(watch, setting))
        if out is not None:
            save_models(trained, Path(out) / "models" / folder_name(setting.name))
        return measure_models(setting, trained, measuring, device)

    tables = run_parts(
        record,
        [len(own) for _, own in parts],
        run,
        {name: variation_table if name == "variation" else whole for name in TABLES},
        out=out,
        resume=resume,
        overwrite=overwrite,
        progress=progress,
    )
    return DyckRuns.of(tables, record) if out is None else DyckRuns.load(out)


def analyse_dyck(
    folders: Sequence[str | Path],
    training: DyckTraining | None = None,
    *,
    measuring: Measuring | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
) -> DyckRuns:
    """Return the same measures as `train_dyck` for models on disk; their number in the list stands for the seed.

    Args:
        folders: Folders of Dyck models of one configuration.
        training: The law to test in distribution with; the rest of it is not looked at.
        measuring: How much is measured on.
        out: Folder to write into; nothing is written when not given.
        resume: Return the finished run in ``out``.
        overwrite: Drop the run that ``out`` holds.

    Raises:
        InputError: For models that are no Dyck transformers, or of different configurations.
        OutputFolderError: If the folder holds something else or cannot be written.
    """
    measuring, training = measuring or Measuring(), training or DyckTraining()
    lenses = [load(folder, device="cpu") for folder in folders]
    models = [lens.model for lens in lenses if isinstance(lens.model, DyckForCausalLM)]
    if not lenses or len(models) < len(lenses):
        raise InputError(f"expected folders of Dyck transformers, got {[str(folder) for folder in folders]}")
    config: DyckConfig = models[0].config
    if len({tuple(getattr(model.config, name) for name in _OPTIONS) for model in models}) > 1:
        raise InputError("expected models of one configuration, got several; analyse them one kind at a time")
    setting = DyckSetting("models", {name: getattr(config, name) for name in _OPTIONS}, training)
    record = provenance(
        ANALYSIS,
        model={"name": ", ".join(map(str, folders)), "sha256": lenses[0].digest},
        texts=[lens.digest for lens in lenses],
        settings={"training": asdict(training), **asdict(measuring)},
    )
    trained = Trained(models, tuple(range(len(models))), torch.full((1, len(models)), float("nan")))
    tables = run_parts(
        record,
        [len(models)],
        lambda _: measure_models(setting, trained, measuring, "cpu"),
        {name: variation_table if name == "variation" else whole for name in TABLES},
        out=out,
        resume=resume,
        overwrite=overwrite,
    )
    return DyckRuns.of(tables, record) if out is None else DyckRuns.load(out)


_OPTIONS = (
    "bracket_types", "max_depth", "open_probability", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "key_size", "block", "first_layer", "positions", "position_scale", "minimal_norms",
)  # fmt: skip


def save_models(trained: Trained, folder: Path) -> None:
    """Write each model as a folder of its own, tokenizer included, that `idl.load` reads."""
    for seed, model in zip(trained.seeds, trained.models, strict=True):
        place = folder / f"seed{seed:03d}"
        save_model(model, bracket_tokenizer(model.config.language), place)


def folder_name(setting: str) -> str:
    """Return the name of a setting's folder of models."""
    return "".join(mark if mark.isalnum() else "_" for mark in setting).strip("_").lower()


def _check(settings: Sequence[DyckSetting], seeds: Sequence[int], size: int, device: str | torch.device) -> None:
    if not settings or len({folder_name(one.name) for one in settings}) < len(settings):
        raise InputError(f"expected settings with different names, got {[one.name for one in settings]}")
    if not seeds or len(set(seeds)) < len(seeds) or min(seeds) < 0 or size < 1:
        raise InputError(
            f"expected one or more different seeds and stacks of at least one, got {list(seeds)} and {size}"
        )
    for setting in settings:
        config = setting.make()
        setting.training.sample(config.language, 1, 0)
        check_memory(config, min(size, len(seeds)), setting.training, device)


def _told(watch: Watch | None, setting: DyckSetting) -> Callable[[int, int, float], None] | None:
    if watch is None:
        return None
    return lambda epoch, epochs, loss: watch(f"{setting.name}: epoch {epoch} of {epochs}, loss {loss:.4f}")
