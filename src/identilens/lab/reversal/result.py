"""The result of the reversal task: a model that reverses sequences, and the structure of its cross attention."""

from dataclasses import dataclass
from typing import ClassVar

import polars as pl
from jaxtyping import Float, Int
from torch import Tensor

from identilens.charts.cells import token_map
from identilens.charts.kit import Charts, lines
from identilens.charts.views import View
from identilens.lab.reversal.task import DRAFT_THRESHOLD, SWEEP, best_range
from identilens.measures.structure.weights import structure_weights
from identilens.runs.result import Finding, Result
from identilens.runs.tables import decimals
from identilens.studies.structure.perturbation_views import NORMS_VIEW, PERTURBATIONS, named_norms

SHOWN = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8)
"""Thresholds whose W is drawn (structure2025, Fig. 2)."""

_FINDING = """\
The model (epochs: {epochs}) has {accuracy:.1%} of the test tokens right when it is given the correct tokens before \
them, and {whole:.1%} of the sequences without an error.
W of head {best_head} matches the antidiagonal best for l from {first_threshold:g} to {last_threshold:g} (cosine \
{best_score:.3f}; {score_at_draft:.3f} at the draft's l = {draft}).
"""
_TILES = """\
{accuracy:.1%} | of the test tokens right
{best_score:.3f} | best match of W and the antidiagonal, at l from {first_threshold:g} to {last_threshold:g}
"""
_INPUTS = """\
Rows are output tokens, columns input tokens. A model that attends to the token it has to write next has its \
attention along the antidiagonal.
"""


@dataclass(frozen=True, kw_only=True)
class Reversal(Result):
    """A model trained to reverse sequences, and the structure of its cross attention (structure2025, V).

    Attributes:
        table: One row: epochs, accuracy on validation and test tokens (given the right ones before), share of ``whole``
            test sequences without a wrong token, share of tokens right when it goes on from its own (``written``; none
            for the transformer).
        heads: Mean over inputs of n − rank(T), one row per head.
        course: Loss and validation accuracy of each epoch.
        sweep: `threshold_sweep` of every head, raw and effective.
        perturbations: Perturbed cross attention put back into the transformer, as in a structure analysis, W at the
            draft's threshold; none for the LSTM.
        matrices: ``cross.weights`` and ``cross.effective`` [head, text, query, key], and ``source``, the inputs.

    Examples:
        >>> import identilens as idl
        >>> small = {"length": 4, "vocabulary": 4, "hidden": 8, "train": 200, "held_out": 20, "inputs": 5}
        >>> reversal = idl.lab.train_reversal(**small, epochs=2)
        >>> reversal.weights.shape, reversal.best_head(), len(reversal.course)
        (torch.Size([1, 5, 4, 4]), 0, 2)
    """

    analysis: ClassVar = "lab reversal"
    title: ClassVar = "Reversing sequences"
    schema: ClassVar = {
        "table": {
            "model": pl.String,
            "epochs": pl.Int64,
            **decimals("validation_accuracy", "accuracy", "whole", "written"),
        },
        "heads": {"head": pl.Int64, "nullity": pl.Float64},
        "course": {"epoch": pl.Int64, "loss": pl.Float64, "validation_accuracy": pl.Float64},
        "sweep": {"head": pl.Int64, "weights": pl.String, **SWEEP},
        "perturbations": PERTURBATIONS,
    }

    words: ClassVar = {
        "threshold": "Threshold l",
        "score": "Score (cosine)",
        "support": "Support (F₁)",
    }
    views: ClassVar = {
        "model": View(title="Model", listed=True),
        "course": View(
            lines,
            ("epoch", ("loss", "validation_accuracy"), "measure"),
            title="Training",
            text="The decoder is given the correct tokens before each.",
            table="course",
        ),
        "inputs": View(title="Cross attention", text=_INPUTS, method="maps"),
        "thresholds": View(
            lines,
            ("threshold", ("score", "support"), "measure"),
            title="Match of W and the antidiagonal, by threshold on the mean",
            text="Score: cosine of W and the antidiagonal. Support: F₁ of where W is positive.",
            table="best_sweep",
            look={"points": False, "x_domain": (0, 1), "y_domain": (0, 1.03)},
        ),
        "heads": View(title="Heads", table="heads", listed=True),
        "norms": NORMS_VIEW,
    }

    heads: pl.DataFrame
    course: pl.DataFrame
    sweep: pl.DataFrame
    perturbations: pl.DataFrame

    @property
    def model(self) -> str:
        """``lstm`` or ``transformer``."""
        return self.table["model"][0]

    @property
    def source(self) -> Int[Tensor, "text n"]:
        """The inputs, one row each."""
        return self.matrices["source"]

    @property
    def weights(self) -> Float[Tensor, "head text n n"]:
        """Cross attention of each head on each input."""
        return self.matrices["cross.weights"]

    def best_head(self) -> int:
        """Return the head whose W matches the antidiagonal best at any threshold on the mean."""
        means = self.sweep.filter(scale="mean", weights="raw")
        return int(means.sort("score", descending=True, maintain_order=True)["head"][0])

    def best_sweep(self) -> pl.DataFrame:
        """Return the sweep of the best head's raw weights, in units of the mean."""
        return self.sweep.filter(head=self.best_head(), scale="mean", weights="raw")

    def subject(self) -> str:
        """Return the model and its inputs."""
        return f"{self.model} on {len(self.source)} sequences of {self.source.shape[-1]} tokens"

    def summary(self) -> Finding:
        """Return how well the model reverses, and how well W shows it."""
        sweep = self.best_sweep()
        score, first, last = best_range(sweep)
        return Finding.of(
            _FINDING,
            _TILES,
            **self.table.row(0, named=True),
            best_head=self.best_head(),
            best_score=score,
            first_threshold=first,
            last_threshold=last,
            draft=DRAFT_THRESHOLD,
            score_at_draft=sweep.filter(threshold=DRAFT_THRESHOLD)["score"][0],
        )

    def norms(self) -> pl.DataFrame:
        """Return how well each norm follows the change of the final hidden state."""
        return named_norms(self.perturbations)

    def maps(self) -> Charts:
        """Return attention on the first input, and W of the best head at some thresholds (Fig. 1, 2)."""
        tokens = [str(token) for token in self.source[0].tolist()]
        places = list(map(str, range(len(tokens))))
        mean = self.weights[self.best_head()].mean(0)
        heads = {f"head {head}": maps[0] for head, maps in enumerate(self.weights)}
        cut = {f"l = {level:g}": structure_weights(mean, level) for level in SHOWN}
        return {
            "attention": token_map(
                heads,
                tokens[::-1],
                tokens,
                f"Cross attention, {self.model}",
                side=180,
                domain=(0, 1),
            ),
            "structures": token_map(
                cut,
                places,
                places,
                f"W by threshold l, {self.model}",
                columns=4,
                domain=(0, 1),
            ),
        }
