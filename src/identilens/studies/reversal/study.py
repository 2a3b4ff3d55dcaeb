"""The reversal task from training to the threshold sweep, for an LSTM and a small transformer (structure2025, V)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Literal

import polars as pl
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import BartConfig, BartForConditionalGeneration

from identilens.errors import InputError
from identilens.measures.attention import effective_attention, numerical_rank
from identilens.measures.structure.weights import structure_weights
from identilens.models import Lens
from identilens.studies.reversal.lstm import AttentionReverser
from identilens.studies.reversal.task import THRESHOLDS, threshold_sweep
from identilens.studies.reversal.training import (
    ReversalData,
    ReversalSettings,
    reversal_data,
    token_accuracy,
    train_reverser,
)
from identilens.studies.structure.closing import frame
from identilens.studies.structure.perturbation_study import perturbation_rows

Reverser = Literal["lstm", "transformer"]
TRANSFORMER_HEADS = 4
TRANSFORMER_RATE = 1e-3
PERTURBED_THRESHOLD = 0.4
PERTURBED_INPUTS = 5


@dataclass(frozen=True)
class ReversalStudy:
    """A model trained to reverse sequences, and the structure of its cross attention.

    Attributes:
        model: ``lstm`` or ``transformer``.
        settings: What it was trained with.
        course: Loss and validation accuracy of each epoch.
        accuracy: Share of test tokens that are right, given the right ones before.
        whole: Share of test sequences without a wrong token, given the right ones before.
        written: Share of test tokens that are right when the model goes on from its own; NaN for the transformer.
        source: The inputs, one row each.
        weights: Cross attention of each head on each input.
        effective: The part of it that the head's output depends on.
        nullity: Mean over inputs of n − rank(T), one a head.
        sweep: `threshold_sweep` of every head: columns head, weights (raw or effective), and its own.
        perturbations: Perturbed cross attention put back into the transformer, as in a structure analysis; W at
            `PERTURBED_THRESHOLD`. Empty for the LSTM, which is none of transformers' models.
        seconds: Time that training took.
    """

    model: Reverser
    settings: ReversalSettings
    course: pl.DataFrame
    accuracy: float
    whole: float
    written: float
    source: Int[Tensor, "text n"]
    weights: Float[Tensor, "head text n n"]
    effective: Float[Tensor, "head text n n"]
    nullity: Float[Tensor, " head"]
    sweep: pl.DataFrame
    perturbations: pl.DataFrame
    seconds: float

    def head_sweep(self, head: int = 0, scale: str = "mean", weights: str = "raw") -> pl.DataFrame:
        """Return one head's sweep, in units of the mean or of the sum."""
        here = (pl.col("head") == head) & (pl.col("scale") == scale) & (pl.col("weights") == weights)
        return self.sweep.filter(here)


def reversal_study(
    model: Reverser = "lstm",
    settings: ReversalSettings | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> ReversalStudy:
    """Return a model trained to reverse sequences with the threshold sweep of its cross attention (structure2025, V).

    Args:
        model: ``lstm``, as in the draft, or ``transformer``: one encoder and one decoder layer of four heads.
        settings: What the task is and how it is learned.
        progress: Called with (epochs done, epochs at most, a note).

    Raises:
        InputError: For an unknown model, or settings that cannot be used.
    """
    if model not in ("lstm", "transformer"):
        raise InputError(f"model must be lstm or transformer; got {model!r}.")
    chosen = settings or ReversalSettings()
    if settings is None and model == "transformer":
        chosen = replace(chosen, learning_rate=TRANSFORMER_RATE)
    data = reversal_data(chosen)
    # Weights are drawn from a generator of their own state, which is put back.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(chosen.seed)
        return (_lstm if model == "lstm" else _transformer)(chosen, data, progress)


def _lstm(
    settings: ReversalSettings, data: ReversalData, progress: Callable[[int, int, str], None] | None
) -> ReversalStudy:
    reverser = AttentionReverser(settings.vocabulary, settings.hidden)

    def logits(source: Tensor, target: Tensor) -> Tensor:
        return reverser(source, target)[0]

    start = perf_counter()
    course = train_reverser(reverser, logits, data, settings, progress)
    seconds = perf_counter() - start
    source = data.test[: settings.inputs]
    with torch.no_grad():
        weights = reverser(source, source.flip(-1))[1].double()
        values = reverser.encode(source)[0].double()
    written = float((reverser.write(data.test) == data.test.flip(-1)).double().mean())
    projection = reverser.output_projection.double().expand(len(source), -1, -1)
    return _study(
        "lstm", settings, course, (*token_accuracy(reverser, logits, data.test), written), source,
        weights[None], values[None], projection[None], seconds,
    )  # fmt: skip


def _transformer(
    settings: ReversalSettings, data: ReversalData, progress: Callable[[int, int, str], None] | None
) -> ReversalStudy:
    start_token = settings.vocabulary
    config = BartConfig(
        vocab_size=settings.vocabulary + 3, d_model=settings.hidden, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=TRANSFORMER_HEADS, decoder_attention_heads=TRANSFORMER_HEADS,
        encoder_ffn_dim=2 * settings.hidden, decoder_ffn_dim=2 * settings.hidden, dropout=0.0,
        max_position_embeddings=settings.length, decoder_start_token_id=start_token, bos_token_id=start_token,
        eos_token_id=start_token + 1, pad_token_id=start_token + 2, forced_eos_token_id=None,
    )  # fmt: skip
    model = BartForConditionalGeneration(config)

    def before(target: Tensor) -> Tensor:
        return torch.cat([torch.full_like(target[:, :1], start_token), target[:, :-1]], 1)

    def logits(source: Tensor, target: Tensor) -> Tensor:
        return model(input_ids=source, decoder_input_ids=before(target), use_cache=False).logits

    start = perf_counter()
    course = train_reverser(model, logits, data, settings, progress)
    seconds = perf_counter() - start
    source = data.test[: settings.inputs]
    lens = Lens(model, name="reversal transformer")
    batch = {"input_ids": source, "decoder_input_ids": before(source.flip(-1))}
    heads = [[head for head in text.heads if head.kind == "cross"] for text in lens.capture(batch, weights=True)]

    def stacked(name: str) -> Tensor:
        return torch.stack([torch.stack([getattr(head, name).double() for head in text]) for text in heads], 1)

    study = _study(
        "transformer", settings, course, (*token_accuracy(model, logits, data.test), float("nan")), source,
        stacked("weights"), stacked("values"), stacked("output_projection"), seconds,
    )  # fmt: skip
    structures = (
        structure_weights(study.weights.mean(1), PERTURBED_THRESHOLD),
        structure_weights(study.effective.abs().mean(1), PERTURBED_THRESHOLD),
    )
    rows = []
    for text, item in enumerate(lens.read(batch)[:PERTURBED_INPUTS]):
        rows += perturbation_rows(lens, item, text, {"cross.layer0": structures}, settings.seed)
    return replace(study, perturbations=frame("perturbations", rows))


def _study(
    model: Reverser, settings: ReversalSettings, course: pl.DataFrame, accuracies: tuple[float, float, float],
    source: Tensor, weights: Tensor, values: Tensor, projection: Tensor, seconds: float,
) -> ReversalStudy:  # fmt: skip
    effective = effective_attention(values, weights=weights, output_projection=projection).effective
    nullity = numerical_rank(values, projection).nullity.double().mean(-1)
    frames = []
    for head in range(len(weights)):
        for name, matrices in (("raw", weights[head]), ("effective", effective[head].abs())):
            for scale in ("mean", "sum"):
                # On the sum, l runs over the same numbers as on the mean: what 0.4 is there is told apart.
                found = threshold_sweep(matrices, THRESHOLDS, scale=scale)
                frames.append(found.select(pl.lit(head).alias("head"), pl.lit(name).alias("weights"), pl.all()))
    return ReversalStudy(
        model,
        settings,
        course,
        *accuracies,
        source,
        weights,
        effective,
        nullity,
        pl.concat(frames),
        frame("perturbations", []),
        seconds,
    )
