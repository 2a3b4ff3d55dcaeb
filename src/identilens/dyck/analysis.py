"""Settings in, results out: Dyck transformers trained, measured and looked into."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor

from identilens.dyck.balance import SecondLayer, measure_balance, second_layer
from identilens.dyck.configuration import DyckConfig
from identilens.dyck.evaluation import LONG, generalisation
from identilens.dyck.language import with_start
from identilens.dyck.misleading import dyck_lens, head_table
from identilens.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.dyck.parsing import probe_prefix, write_brackets
from identilens.dyck.settings import DyckTraining
from identilens.dyck.training import Trained, check_memory, train_models
from identilens.dyck.variation import attention_variation, random_baselines
from identilens.errors import InputError
from identilens.models.loading import load
from identilens.results.dyck import (
    ANALYSIS,
    CURVE_COLUMNS,
    HEAD_COLUMNS,
    PATTERN_COLUMNS,
    RUN_COLUMNS,
    TABLES,
    VARIATION_COLUMNS,
    DyckRuns,
)
from identilens.results.parts import Tables, run_parts, whole
from identilens.results.provenance import provenance

Watch = Callable[[str], None]


@dataclass(frozen=True)
class DyckSetting:
    """One kind of model, trained in one way.

    Attributes:
        name: What it is called in tables and figures.
        config: Options of `DyckConfig`.
        training: Data, schedule and loss.
    """

    name: str
    config: dict[str, Any] = field(default_factory=dict)
    training: DyckTraining = field(default_factory=DyckTraining)

    def make(self) -> DyckConfig:
        """Return the configuration."""
        return DyckConfig(**self.config)


@dataclass(frozen=True)
class Measuring:
    """How much is measured on.

    Attributes:
        sequences: Sequences in distribution.
        long_sequences: Sequences of the length generalisation.
        lengths: Brackets in their shortest and longest prefix.
        head_sequences: Sequences on which heads are changed.
        draws: Random patterns a head.
    """

    sequences: int = 1000
    long_sequences: int = 100
    lengths: tuple[int, int] = LONG
    head_sequences: int = 100
    draws: int = 3

    def __post_init__(self) -> None:
        shortest, longest = self.lengths
        if (
            min(self.sequences, self.long_sequences, self.head_sequences, self.draws) < 1
            or not 2 <= shortest <= longest
        ):
            raise InputError(
                f"expected at least one sequence of each kind and lengths such as 400 to 500, got {self}; raise them"
            )


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
        return _measure(setting, trained, measuring, device)

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
        lambda _: _measure(setting, trained, measuring, "cpu"),
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
        lens = dyck_lens(model, place.name)
        model.save_pretrained(place)
        lens.tokenizer.save_pretrained(place)


def folder_name(setting: str) -> str:
    """Return the name of a setting's folder of models."""
    return "".join(mark if mark.isalnum() else "_" for mark in setting).strip("_").lower()


def model_second_layer(model: DyckForCausalLM) -> SecondLayer | None:
    """Return the attention layer behind a minimal first layer, or None where the model has no such thing."""
    config: DyckConfig = model.config
    if config.block != "minimal" or config.num_attention_heads > 1:
        return None
    embeddings = model.get_buffer("dyck.embeddings.symbol_table")[:, : config.d_in]
    if config.minimal_norms:
        embeddings = model.get_submodule("dyck.layers.0.norm_1")(embeddings).detach()
    through = "norm" if config.minimal_norms else "identity"
    return second_layer(embeddings, *attention_weights(model, 0), through=through)


def probe_patterns(model: DyckForCausalLM) -> list[tuple[int, int, Tensor]]:
    """Return layer, head and attention [query, key] of every head on the probe prefix, start token first."""
    tokens = probe_tokens(model.config)
    captured = next(dyck_lens(model, "probe").capture([tokens.tolist()], weights=True))
    found = []
    for head in captured.heads:
        if head.weights is None:
            raise RuntimeError("weights were asked for")
        found.append((head.layer, head.head, head.weights))
    return found


def probe_tokens(config: DyckConfig) -> Int[Tensor, " n"]:
    """Return the prefix with all brackets at all depths behind a start token."""
    return with_start(probe_prefix(config.language)[None])[0]


def variation_table(patterns: pl.DataFrame) -> pl.DataFrame:
    """Return the attention variation of every setting, layer and head, in both conventions on the start token."""
    rows = []
    for (setting, layer, head), own in patterns.group_by(["setting", "layer", "head"], maintain_order=True):
        if len(own) < 2:
            continue
        size = own["size"][0]
        maps = torch.tensor(own["weights"].to_list()).view(-1, size, size)
        for with_start_token in (False, True):
            found = attention_variation(maps, with_start=with_start_token)
            random = {one.name: one.value for one in random_baselines(found.size, draws=500) if one.causal}
            rows.append((
                setting, layer, head, with_start_token, found.size, found.seeds, found.value, found.error,
                random["even on the simplex"], random["softmax of normals"],
            ))  # fmt: skip
    return pl.DataFrame(rows, schema=VARIATION_COLUMNS, orient="row")


def _measure(setting: DyckSetting, trained: Trained, measuring: Measuring, device: str | torch.device) -> Tables:
    config, training = setting.make(), setting.training
    own, long = generalisation(
        trained.models,
        training,
        count=measuring.sequences,
        long_count=measuring.long_sequences,
        lengths=measuring.lengths,
        device=device,
    )
    facts = (
        setting.name, config.bracket_types, config.max_depth, config.num_hidden_layers, config.num_attention_heads,
        config.block, config.first_layer, config.positions, training.data, training.learning_rate,
        training.weight_decay, training.contrast, training.epochs,
    )  # fmt: skip
    table, curves, patterns = [], [], []
    names = write_brackets(config.language, probe_tokens(config))
    for member, (seed, model) in enumerate(zip(trained.seeds, trained.models, strict=True)):
        layer = model_second_layer(model)
        found = None if layer is None else measure_balance(config.language, layer)
        unbalanced = (None,) * 3 if found is None else (found.violation, found.largest, found.condition)
        losses = trained.losses[:, member].tolist()
        scores = [number for one in (own[member], long[member]) for number in (one.argmax, one.threshold)]
        table.append((*facts, seed, losses[-1], *scores, *unbalanced))
        curves += [(setting.name, seed, epoch + 1, loss) for epoch, loss in enumerate(losses)]
        for number, head, weights in probe_patterns(model):
            patterns.append((setting.name, seed, number, head, len(weights), names, weights.flatten().tolist()))
    test = training.sample(config.language, measuring.head_sequences, 3_000_001)
    heads = head_table(trained.models, trained.seeds, test, draws=measuring.draws)
    drawn = pl.DataFrame(patterns, schema=PATTERN_COLUMNS, orient="row")
    return {
        "table": pl.DataFrame(table, schema=RUN_COLUMNS, orient="row"),
        "curves": pl.DataFrame(curves, schema=CURVE_COLUMNS, orient="row"),
        "heads": heads.with_columns(setting=pl.lit(setting.name)).select(HEAD_COLUMNS.keys()),
        "patterns": drawn,
        # Variation needs all seeds: parts keep the patterns, and joining them makes the table.
        "variation": drawn,
    }


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
