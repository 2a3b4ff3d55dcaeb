"""What is measured on trained Dyck transformers: accuracy, attention, balance, and what heads are used for."""

from dataclasses import dataclass

import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor

from identilens.dyck.balance import SecondLayer, measure_balance, second_layer
from identilens.dyck.configuration import DyckConfig
from identilens.dyck.evaluation import LONG, generalisation
from identilens.dyck.language import with_start
from identilens.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.dyck.parsing import probe_prefix, write_brackets
from identilens.dyck.settings import DyckSetting
from identilens.dyck.training import Trained
from identilens.dyck.variation import attention_variation, random_baselines
from identilens.errors import InputError
from identilens.results.dyck import CURVE_COLUMNS, HEAD_COLUMNS, PATTERN_COLUMNS, RUN_COLUMNS, VARIATION_COLUMNS
from identilens.results.parts import Tables
from identilens.studies.dyck_train.misleading import dyck_lens, head_table


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


def measure_models(setting: DyckSetting, trained: Trained, measuring: Measuring, device: str | torch.device) -> Tables:
    """Return the tables of `DyckRuns` for models trained in one setting.

    Args:
        setting: What they are.
        trained: The models with seeds and losses.
        measuring: How much is measured on.
        device: Where accuracies are computed.
    """
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
