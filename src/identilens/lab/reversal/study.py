"""The reversal task from training to the threshold sweep, for an LSTM and a small transformer (structure2025, V)."""

from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from identilens.lab.reversal.lstm import AttentionReverser
from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.settings import ReversalSettings
from identilens.lab.reversal.task import DRAFT_THRESHOLD, THRESHOLDS, threshold_sweep
from identilens.lab.reversal.training import reversal_data, token_accuracy, train_reverser
from identilens.lab.reversal.transformer import TransformerReverser
from identilens.measures.attention import effective_attention, numerical_rank
from identilens.measures.structure.weights import structure_weights
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import table_of
from identilens.studies.perturbation import perturbation_rows

PERTURBED_INPUTS = 5

Rows = Sequence[Mapping[str, Any]]


class ReversalStudy(Study[ReversalSettings, Reversal]):
    """Train a model to reverse sequences, and sweep the threshold l over the structure W of its cross attention.

    The attention that reverses a sequence is known (structure2025, V): W should be the antidiagonal. Perturbed cross
    attention is put back into the transformer, but not into the LSTM, which is not a model of transformers.

    Raises:
        InputError: For settings that cannot be used.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> small = {"length": 4, "vocabulary": 4, "hidden": 8, "train": 200, "held_out": 20, "inputs": 5}
        >>> reversal = idl.lab.train_reversal(**small, epochs=2)
        >>> reversal.table.columns[:3], len(reversal.sweep)
        (['model', 'epochs', 'validation_accuracy'], 204)
    """

    name = "lab reversal"
    unit = "models"
    takes = ()
    settings_type = ReversalSettings
    result_type = Reversal

    def identity(self) -> Identity:
        """Return the model, with the learning rate that is used."""
        return Identity({"name": f"reversal {self.settings.model}"}, [], {"learning_rate": self.settings.rate})

    def sizes(self) -> Sequence[int]:
        """Return one part: the model."""
        return [1]

    def run(self, part: int) -> Output:
        """Return everything about the model."""
        # The state of torch's global generator is restored afterwards.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return self._trained()

    def _trained(self) -> Output:
        settings, data = self.settings, reversal_data(self.settings)
        model = (
            AttentionReverser(settings.vocabulary, settings.hidden)
            if settings.model == "lstm"
            else TransformerReverser(settings.vocabulary, settings.hidden, settings.length)
        )
        start = perf_counter()
        course = train_reverser(model, data, settings, self.tell)
        seconds = perf_counter() - start
        source = data.test[: settings.inputs]
        seen = model.cross_attention(source)
        values, projection = seen.values, seen.output_projection
        effective = effective_attention(values, weights=seen.weights, output_projection=projection).effective
        accuracy, whole = token_accuracy(model, data.test)
        row = {
            "model": settings.model, "epochs": len(course), "validation_accuracy": course[-1]["validation_accuracy"],
            "accuracy": accuracy, "whole": whole, "written": model.written(data.test), "seconds": seconds,
        }  # fmt: skip
        nullity = numerical_rank(values, projection).nullity.double().mean(-1)
        changed = isinstance(model, TransformerReverser)
        rows: dict[str, Rows] = {
            "table": [row],
            "heads": [{"head": head, "nullity": value} for head, value in enumerate(nullity.tolist())],
            "course": course,
            "sweep": _sweep(seen.weights, effective),
            "perturbations": self._perturbed(model, source, seen.weights, effective) if changed else [],
        }
        tables = {name: table_of(columns, rows[name]) for name, columns in Reversal.schema.items()}
        # Where T has no null space, effective weights are the weights themselves: safetensors refuses shared tensors.
        return Output(tables, {"cross.weights": seen.weights, "cross.effective": effective.clone(), "source": source})

    def _perturbed(
        self, model: TransformerReverser, source: Int[Tensor, "text n"], weights: Tensor, effective: Tensor
    ) -> Rows:
        self.tell("perturbed weights in the model")
        raw, sizes = (structure_weights(maps.mean(1), DRAFT_THRESHOLD) for maps in (weights, effective.abs()))
        lens, structures = model.lens, {"cross.layer0": (raw, sizes)}
        items = lens.read(model.batch(source))[:PERTURBED_INPUTS]
        return [row for text, item in enumerate(items)
                for row in perturbation_rows(lens, item, text, structures, self.settings.seed)]  # fmt: skip


def _sweep(weights: Float[Tensor, "head text n n"], effective: Float[Tensor, "head text n n"]) -> Rows:
    # The same values of l are used on the sum as on the mean, so that the two scales can be compared.
    return [
        {"head": head, "weights": name, **row}
        for head in range(len(weights))
        for name, maps in (("raw", weights[head]), ("effective", effective[head].abs()))
        for scale in ("mean", "sum")
        for row in threshold_sweep(maps, THRESHOLDS, scale=scale).iter_rows(named=True)
    ]


train_reversal = study_function(ReversalStudy, "train_reversal")
