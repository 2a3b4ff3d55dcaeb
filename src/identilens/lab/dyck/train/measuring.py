"""What is measured on trained Dyck transformers: accuracy, attention, balance, and what heads are used for."""

from dataclasses import asdict
from typing import Any

import polars as pl
import torch
from jaxtyping import Int
from torch import Tensor

from identilens.lab.dyck.balance import SecondLayer, measure_balance, second_layer
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.evaluation import generalisation
from identilens.lab.dyck.language import with_start
from identilens.lab.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.lab.dyck.parsing import probe_prefix, write_brackets
from identilens.lab.dyck.settings import DyckSetting, Measuring
from identilens.lab.dyck.train.misleading import dyck_lens, head_table
from identilens.lab.dyck.train.result import DyckRuns
from identilens.lab.dyck.training import Trained
from identilens.lab.dyck.variation import attention_variation, random_baselines
from identilens.runs.study import Tables
from identilens.runs.tables import table_of


def measure_models(setting: DyckSetting, trained: Trained, measuring: Measuring, device: str | torch.device) -> Tables:
    """Return the tables of `DyckRuns` for models trained in one setting; accuracies are computed on the device."""
    config, schema = setting.make(), DyckRuns.schema
    accuracies = generalisation(
        trained.models, setting.training, count=measuring.sequences, long_count=measuring.long_sequences,
        lengths=measuring.lengths, device=device,
    )  # fmt: skip
    facts = _facts(setting, config)
    table, curves, patterns = [], [], []
    names = write_brackets(config.language, probe_tokens(config))
    members = zip(trained.seeds, trained.models, trained.losses.T.tolist(), *accuracies, strict=True)
    for seed, model, losses, short, long in members:
        one = {"setting": setting.name, "seed": seed}
        shares = {"argmax": short.argmax, "threshold": short.threshold}
        shares |= {"long_argmax": long.argmax, "long_threshold": long.threshold}
        table.append({**facts, "seed": seed, "loss": losses[-1], **shares, **_balance(model)})
        curves += [{**one, "epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses, 1)]
        for layer, head, weights in probe_patterns(model):
            drawn = {"size": len(weights), "tokens": names, "weights": weights.flatten().tolist()}
            patterns.append({**one, "layer": layer, "head": head, **drawn})
    test = setting.training.sample(config.language, measuring.head_sequences, 3_000_001)
    heads = head_table(trained.models, trained.seeds, test, draws=measuring.draws)
    kept = table_of(schema["patterns"], patterns)
    return {
        "table": table_of(schema["table"], table),
        "curves": table_of(schema["curves"], curves),
        "heads": heads.with_columns(setting=pl.lit(setting.name)).select(list(schema["heads"])),
        "patterns": kept,
        # Variation needs all seeds: parts keep the patterns, and joining them makes the table.
        "variation": kept,
    }


def _facts(setting: DyckSetting, config: DyckConfig) -> dict[str, Any]:
    training = ("data", "learning_rate", "weight_decay", "contrast", "epochs")
    return {
        "setting": setting.name, "types": config.bracket_types, "depth": config.max_depth,
        "layers": config.num_hidden_layers, "heads": config.num_attention_heads, "block": config.block,
        "first_layer": config.first_layer, "positions": config.positions,
    } | {name: getattr(setting.training, name) for name in training}  # fmt: skip


def _balance(model: DyckForCausalLM) -> dict[str, float | None]:
    layer = model_second_layer(model)
    balance = None if layer is None else measure_balance(model.config.language, layer)
    names = {"violation": "violation", "largest_violation": "largest", "condition": "condition"}
    return {column: getattr(balance, name, None) for column, name in names.items()}


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


def probe_patterns(model: DyckForCausalLM, prefix: Int[Tensor, " n"] | None = None) -> list[tuple[int, int, Tensor]]:
    """Return layer, head and attention [query, key] of every head on a prefix behind a start token.

    By default on the prefix with all brackets at all depths.
    """
    tokens = probe_tokens(model.config) if prefix is None else prefix
    captured = next(dyck_lens(model, "probe").capture([tokens.tolist()], weights=True))
    patterns = []
    for head in captured.heads:
        if head.weights is None:
            raise RuntimeError("weights were requested")
        patterns.append((head.layer, head.head, head.weights))
    return patterns


def probe_tokens(config: DyckConfig) -> Int[Tensor, " n"]:
    """Return the prefix with all brackets at all depths behind a start token."""
    return with_start(probe_prefix(config.language)[None])[0]


def variation_table(patterns: pl.DataFrame) -> pl.DataFrame:
    """Return the attention variation of every setting, layer and head, in both conventions on the start token."""
    rows, places = [], ["setting", "layer", "head"]
    for place, of_head in patterns.filter(pl.len().over(places) > 1).group_by(places, maintain_order=True):
        size = of_head["size"][0]
        maps = torch.tensor(of_head["weights"].to_list()).view(-1, size, size)
        for start in (False, True):
            variation = attention_variation(maps, with_start=start)
            even, normal = (one.value for one in random_baselines(size, with_start=start, draws=500) if one.causal)
            random = {"even_on_simplex": even, "softmax_of_normals": normal}
            rows.append({**dict(zip(places, place, strict=True)), "with_start": start, **asdict(variation), **random})
    return table_of(DyckRuns.schema["variation"], rows)
