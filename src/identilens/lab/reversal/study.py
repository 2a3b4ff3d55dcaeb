"""The reversal task from training to the threshold sweep, for an LSTM and a small transformer (structure2025, V)."""

from collections.abc import Sequence
from time import perf_counter

import torch

from identilens.lab.reversal.models import (
    AttentionReverser,
    TransformerReverser,
    reversal_data,
    token_accuracy,
    train_reverser,
)
from identilens.lab.reversal.result import Reversal
from identilens.lab.reversal.task import (
    DRAFT_THRESHOLD,
    THRESHOLDS,
    ReversalSettings,
    threshold_sweep,
)
from identilens.measures.attention import effective_attention, numerical_rank
from identilens.measures.structure.weights import structure_weights
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, Study, study_function
from identilens.runs.tables import table_of
from identilens.studies.perturbation import perturbation_rows

PERTURBED_INPUTS = 5


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
        return Identity(
            {"name": f"reversal {self.settings.model}"}, [], {"learning_rate": self.settings.rate}
        )

    def sizes(self) -> Sequence[int]:
        """Return one part: the model."""
        return [1]

    def run(self, part: int) -> Output:
        """Return everything about the model; the state of torch's global generator is restored afterwards."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return self._run()

    def _run(self) -> Output:
        settings, data = self.settings, reversal_data(self.settings)
        if settings.model == "lstm":
            model = AttentionReverser(settings.vocabulary, settings.hidden)
        else:
            model = TransformerReverser(settings.vocabulary, settings.hidden, settings.length)
        start = perf_counter()
        course = train_reverser(model, data, settings, self.tell)
        seconds = perf_counter() - start
        source = data.test[: settings.inputs]
        cross = model.cross_attention(source)
        weights, values, projection = cross.weights, cross.values, cross.output_projection
        effective = effective_attention(
            values, weights=weights, output_projection=projection
        ).effective
        accuracy, whole = token_accuracy(model, data.test)
        row = {
            "model": settings.model,
            "epochs": len(course),
            "validation_accuracy": course[-1]["validation_accuracy"],
            "accuracy": accuracy,
            "whole": whole,
            "written": model.written(data.test),
            "seconds": seconds,
        }
        nullity = numerical_rank(values, projection).nullity.double().mean(-1)
        # The same values of l are used on the sum as on the mean, so that the two scales can be compared.
        sweep = [
            {"head": head, "weights": name, **swept}
            for head in range(len(weights))
            for name, maps in (("raw", weights[head]), ("effective", effective[head].abs()))
            for scale in ("mean", "sum")
            for swept in threshold_sweep(maps, THRESHOLDS, scale=scale).iter_rows(named=True)
        ]
        perturbations = []
        if isinstance(model, TransformerReverser):
            self.tell("perturbed weights in the model")
            raw, sizes = (
                structure_weights(maps.mean(1), DRAFT_THRESHOLD)
                for maps in (weights, effective.abs())
            )
            lens, structures = model.lens, {"cross.layer0": (raw, sizes)}
            for text, item in enumerate(lens.read(model.batch(source))[:PERTURBED_INPUTS]):
                perturbations += perturbation_rows(lens, item, text, structures, settings.seed)
        rows = {
            "table": [row],
            "heads": [
                {"head": head, "nullity": value} for head, value in enumerate(nullity.tolist())
            ],
            "course": course,
            "sweep": sweep,
            "perturbations": perturbations,
        }
        tables = {name: table_of(columns, rows[name]) for name, columns in Reversal.schema.items()}
        # Where T has no null space, effective weights are the weights themselves: safetensors refuses shared tensors.
        return Output(
            tables,
            {"cross.weights": weights, "cross.effective": effective.clone(), "source": source},
        )


train_reversal = study_function(ReversalStudy, "train_reversal")
