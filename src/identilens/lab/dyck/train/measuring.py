"""Measures of trained Dyck models: accuracy, attention patterns, and what each head's attention is used for."""

from collections.abc import Iterator, Sequence
from itertools import product
from statistics import fmean

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.lab.drawing import seeded
from identilens.lab.dyck.balance import measure_balance, second_layer
from identilens.lab.dyck.evaluation import closing_accuracy
from identilens.lab.dyck.language import Dyck, Tokens, with_start
from identilens.lab.dyck.modeling import DyckForCausalLM, attention_weights
from identilens.lab.dyck.parsing import parse, probe_prefix
from identilens.lab.dyck.settings import DyckSetting, Measuring
from identilens.lab.dyck.tokenizer import bracket_tokenizer
from identilens.lab.dyck.train.result import FACTS, DyckRuns
from identilens.lab.dyck.training import Trained
from identilens.measures.structure.weights import normalise_rows
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.runs.tables import Row, Tables, table_of


def attention_variation(patterns: Float[Tensor, "seed n n"], *, with_start: bool = False) -> Row:
    """Return the attention variation, the mean of ‖A₁ − A₂‖²_F over pairs of seeds (``value``).

    ``error``: its standard error over seeds, by the jackknife (pairs that share a seed are not independent); NaN for
    two patterns. ``seeds``: the number of patterns. ``size``: their rows that are compared.

    Two conventions change the number by much, and the paper states neither. The patterns here are causal, as the models
    compute them: entries above the diagonal are zero. The first row and column belong to the start token; they are left
    out by default, and the remaining rows are not scaled to sum to one.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck.train.measuring import attention_variation
        >>> patterns = torch.stack([torch.eye(4), torch.full((4, 4), 0.25), torch.eye(4).flip(0)])
        >>> round(attention_variation(patterns)["value"], 3)
        2.875
    """
    compared = patterns if with_start else patterns[:, 1:, 1:]
    seeds, size = compared.shape[:2]
    flat = compared.double().flatten(1)
    squares = torch.cdist(flat, flat).square()
    total = float(squares.sum())
    # Two patterns divide 0 by 0.
    left_out = (total - 2 * squares.sum(1)) / ((seeds - 1) * (seeds - 2))
    return {
        "value": total / (seeds * (seeds - 1)),
        "error": float(left_out.std(correction=0)) * (seeds - 1) ** 0.5,
        "seeds": seeds,
        "size": size,
    }


def random_baselines(
    size: int, *, with_start: bool = False, draws: int = 4000
) -> dict[tuple[str, bool], float]:
    """Return the variation of random patterns: rows uniform on the simplex, and softmax of standard normal logits.

    By name of the baseline (``even_on_simplex``, ``softmax_of_normals``), and by whether patterns are causal: row i
    (from 1) is over i tokens; otherwise every row is over all tokens.

    The patterns have ``size`` rows, the start token's included, and are treated as in `attention_variation`: by default
    the start token's row and column are left out, and the rest is not scaled. Two rows uniform on the simplex of m
    entries (Dirichlet(1)) have the expected squared distance 2 (1 − 1/m)/(m + 1), exactly; without one of the entries
    2 (1 − 1/m)²/(m + 1). The softmax is simulated with ``draws`` pairs of patterns.

    Examples:
        >>> from identilens.lab.dyck import random_baselines
        >>> {name: round(value, 1) for name, value in random_baselines(9, draws=500).items()}
        {('even_on_simplex', False): 1.3, ('softmax_of_normals', False): 1.4, ('even_on_simplex', True): 1.5,
        ('softmax_of_normals', True): 1.6}
    """
    baselines, generator, left_out = {}, seeded(0), int(not with_start)
    for causal in (False, True):
        visible = torch.ones(size, size).tril(0 if causal else size)
        entries = visible.sum(1).double()[left_out:]
        squares = 2 * (1 - 1 / entries) ** (1 + left_out) / (entries + 1)
        baselines["even_on_simplex", causal] = float(squares.sum())
        normals = torch.randn(2, draws, size, size, generator=generator)
        first, second = (normals + visible.log()).softmax(-1)[..., left_out:, left_out:]
        squares = (first - second).square().sum((1, 2)).double()
        baselines["softmax_of_normals", causal] = float(squares.mean())
    return baselines


def stack_likeness(language: Dyck, weights: Float[Tensor, "count n n"], tokens: Tokens) -> Row:
    """Return how stack-like attention is (the pattern of Ebrahimi et al. 2020 and Yao et al. 2021).

    The queries are closing brackets after which the stack is not empty. There the next closing bracket depends on the
    last unmatched bracket, which is never the query itself. ``stack_weight``: their mean weight on that bracket, in
    [0, 1], NaN without a query; ``stack_first``: the share of queries for which it has the largest weight;
    ``even_weight``: the mean weight of uniform attention on it.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import Dyck
        >>> from identilens.lab.dyck.train.measuring import stack_likeness
        >>> words = torch.tensor([[3, 4, 6, 5]])
        >>> stack_likeness(Dyck(types=2, max_depth=3), torch.full((1, 4, 4), 0.25), words)
        {'stack_weight': 0.25, 'stack_first': 1.0, 'even_weight': 0.3333333432674408}
    """
    parsed = parse(language, tokens)
    chosen = language.is_close(tokens) & (parsed.depth > 0)
    rows, top = weights[chosen].double(), parsed.top_place[chosen]
    return {
        "stack_weight": float(rows.gather(1, top[:, None]).mean()),
        "stack_first": float((rows.argmax(1) == top).double().mean()),
        "even_weight": float((1 / (chosen.nonzero()[:, 1] + 1.0)).mean()),
    }


LOOKS = 0.5
"""Share of a closing bracket's attention on the last unmatched bracket from which a head looks like a stack."""

UNUSED = 0.01
"""Fall of accuracy up to which a head's pattern counts as unused."""


def dyck_lens(model: DyckForCausalLM) -> Lens:
    """Return a lens on a Dyck model that reads bracket strings."""
    return Lens(model, bracket_tokenizer(model.config.language))


def head_rows(model: DyckForCausalLM, tokens: Tokens, *, draws: int = 3) -> Iterator[Row]:
    """Yield, for every head of a model, how stack-like it looks and what changing its attention does.

    ``removed``: the head's output is zero. ``even``: every visible key has the same weight. ``random``: rows even on
    the simplex of visible keys, the mean over several draws. ``looks``: at least half of a closing bracket's attention
    lies on the last unmatched bracket, on average. ``used``: one of the three lowers accuracy by more than 0.01.
    """
    language, inputs = model.config.language, tokens[:, :-1]
    lens, parsed = dyck_lens(model), parse(language, inputs)
    items = lens.read(inputs.tolist())
    closing = (parsed.depth > 0) & language.is_close(tokens[:, 1:])
    weights: dict[int, Tensor] = {}

    def accuracy(layer: int = 0, head: int = 0, pattern: Tensor | None = None) -> float:
        """Return the accuracy with one head's attention replaced, or keep every head's attention."""

        def handle(call: AttentionCall) -> Tensor:
            output, attention = call.attend()
            if pattern is None:
                weights[call.index] = attention
            elif call.index == layer:
                output[:, :, head] = pattern.to(call.value) @ call.value[:, head]
            return output

        logits = lens.run(items, handle, task_head=True).logits[..., language.closing]
        return float((logits.argmax(-1) == parsed.top_type)[closing].double().mean())

    intact, shape = accuracy(), (*inputs.shape, inputs.shape[1])
    # Exponential variables divided by their sum are even on the simplex.
    drawn = [torch.empty(shape).exponential_(generator=seeded(draw)) for draw in range(draws)]
    patterns = normalise_rows(torch.stack([torch.zeros(shape), torch.ones(shape), *drawn]).tril())
    for layer, head in product(weights, range(model.config.num_attention_heads)):
        looks = stack_likeness(language, weights[layer][:, head], inputs)
        removed, even, *random = (accuracy(layer, head, pattern) for pattern in patterns)
        changed = {"removed": removed, "even": even, "random": fmean(random)}
        fall = intact - min(changed.values())
        yield {
            "layer": layer,
            "head": head,
            **looks,
            "accuracy": intact,
            **changed,
            "largest_fall": fall,
            "looks": looks["stack_weight"] >= LOOKS,
            "used": fall > UNUSED,
        }


_NAMES = {
    "types": "bracket_types",
    "depth": "max_depth",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
}
"""Names of the configuration's fields, where the table has others."""


def measure_models(
    setting: DyckSetting, seeds: Sequence[int], trained: Trained, measuring: Measuring
) -> Tables:
    """Return the tables of `DyckRuns` for models trained in one setting."""
    config, training = trained.models[0].config, setting.training
    language = config.language
    # These seeds are not those of the training sets.
    short = language.sample(training, measuring.sequences, 1_000_004)
    shortest, longest = measuring.lengths
    long = with_start(
        language.sample_prefixes(measuring.long_sequences, longest, seeded(2_000_004))
    )
    test = language.sample(training, measuring.head_sequences, 3_000_001)
    known = {**vars(config), **vars(training)}
    facts = {name: known[_NAMES.get(name, name)] for name in FACTS}
    rows = {"table": [], "curves": [], "heads": []}
    for seed, model, losses in zip(seeds, trained.models, trained.losses.T.tolist(), strict=True):
        key = {"setting": setting.name, "seed": seed}
        later = closing_accuracy(model, long, shortest)
        measures = {
            "loss": losses[-1],
            **vars(closing_accuracy(model, short)),
            "long_argmax": later.argmax,
            "long_threshold": later.threshold,
            **balance_of(model),
        }
        rows["table"].append({**key, **facts, **measures})
        rows["curves"] += [
            {**key, "epoch": epoch, "loss": loss} for epoch, loss in enumerate(losses, 1)
        ]
        rows["heads"] += [{**key, **row} for row in head_rows(model, test, draws=measuring.draws)]
    return {
        **{name: table_of(DyckRuns.schema[name], rows[name]) for name in rows},
        "patterns": pattern_table(
            setting.name, seeds, trained.models, with_start(probe_prefix(language))
        ),
    }


def balance_of(model: DyckForCausalLM) -> Row:
    """Return the balance behind a minimal first layer, None where model or language have no such thing."""
    config = model.config
    if (
        config.block != "minimal"
        or config.num_attention_heads > 1
        or min(config.bracket_types, config.max_depth) < 2
    ):
        return dict.fromkeys(("violation", "largest_violation", "condition"))
    embeddings = model.get_buffer("dyck.embeddings.symbol_table")[:, : config.d_in]
    normed = model.get_submodule("dyck.layers.0.norm_1")(embeddings).detach()
    return vars(
        measure_balance(config.language, second_layer(normed, *attention_weights(model, 0)))
    )


def pattern_table(
    setting: str,
    seeds: Sequence[int],
    models: Sequence[DyckForCausalLM],
    prefix: Int[Tensor, " n"],
) -> pl.DataFrame:
    """Return the attention of every head of every model on a prefix behind a start token."""
    rows = [
        {
            "setting": setting,
            "seed": seed,
            "layer": head.layer,
            "head": head.head,
            "size": len(prefix),
            "tokens": captured.tokens["encoder"],
            "weights": head.attention.float().flatten().tolist(),
        }
        for seed, model in zip(seeds, models, strict=True)
        for captured in dyck_lens(model).capture([prefix.tolist()], weights=True)
        for head in captured.heads
    ]
    return table_of(DyckRuns.schema["patterns"], rows)


def variation_table(patterns: pl.DataFrame) -> pl.DataFrame:
    """Return the attention variation of every setting, layer and head, in both conventions on the start token."""
    rows, places = [], ["setting", "layer", "head"]
    for key, of_head in patterns.filter(pl.len().over(places) > 1).group_by(
        places, maintain_order=True
    ):
        size = of_head["size"][0]
        maps = torch.tensor(of_head["weights"].to_list()).view(-1, size, size)
        for start in (False, True):
            baselines = random_baselines(size, with_start=start, draws=500)
            rows.append(
                {
                    **dict(zip(places, key, strict=True)),
                    "with_start": start,
                    **attention_variation(maps, with_start=start),
                    **{name: baselines[name, True] for name, _ in baselines},
                }
            )
    return table_of(DyckRuns.schema["variation"], rows)
