"""The result of testing explanations of a classifier's decisions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import polars as pl

from identilens.charts.encoding import AnyChart
from identilens.charts.kit import Charts, intervals
from identilens.charts.page import Section
from identilens.runs.result import Finding, Result
from identilens.runs.tables import Tables, counted, integers
from identilens.studies.faithfulness.result import differences, in_words, means

Measure = Literal["comprehensiveness", "sufficiency"]


@dataclass(frozen=True, kw_only=True)
class Rationales(Result):
    """Comprehensiveness and sufficiency of the tokens that explanations of a classifier's decision put first.

    Attributes:
        table: One row for each text and explanation: comprehensiveness (large if the tokens are needed) and sufficiency
            (small if they are enough), for the class that the model predicts for the whole text.

    Examples:
        >>> import identilens as idl
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, vocab_size=50)
        >>> lens = idl.Lens(idl.lab.IdentifiableEncoderForSequenceClassification(config))
        >>> found = idl.rationales(lens, [[3, 4, 5, 6, 7], [8, 9, 10]], draws=2)
        >>> found.measured("sufficiency").columns, found.against("random")["texts"].to_list()
        (['explanation', 'mean', 'low', 'high', 'texts'], [2, 2, 2, 2, 2])
    """

    analysis: ClassVar = "rationales"
    title: ClassVar = "Are the tokens that explain a decision needed, and are they enough?"
    schema: ClassVar = {
        "table": {
            **integers("text", "tokens", "predicted"),
            "probability": pl.Float64,
            "explanation": pl.String,
            "comprehensiveness": pl.Float64,
            "sufficiency": pl.Float64,
        }
    }

    def measured(self, measure: Measure = "comprehensiveness") -> pl.DataFrame:
        """Return the mean of a measure by explanation, with its 95 % bootstrap interval over texts."""
        return means(self.table, ["explanation"], measure)

    def against(
        self, reference: str = "random", measure: Measure = "comprehensiveness"
    ) -> pl.DataFrame:
        """Return the mean difference of each explanation to a reference on the same texts, with its interval."""
        return differences(self.table, [], measure, reference)

    def summary(self) -> Finding:
        """Return the finding: the most comprehensive and the most sufficient explanation, compared with random ones."""
        texts = self.table["text"].n_unique()
        if not texts:
            return Finding(
                "No text was tested: none has two tokens that can be removed.", {"texts": 0}
            )
        lines, headline = [], []
        numbers: dict[str, float | int | None] = {"texts": texts}
        for measure, label, words, descending in _QUESTIONS:
            best = (
                self.against("random", measure)
                .sort("mean", descending=descending)
                .row(0, named=True)
            )
            mean = self.measured(measure).filter(explanation=best["explanation"])["mean"].item()
            difference = in_words(best["mean"], best["low"], best["high"], "+.3f")
            lines.append(
                f"{words}: {best['explanation']}, {measure} {mean:.3f}, which is {difference} against random tokens "
                f"({counted(texts, 'text')})."
            )
            numbers |= {measure: mean, f"{measure}_over_random": best["mean"]}
            headline.append((f"{best['mean']:+.3f}", f"{label}: {best['explanation']}"))
        return Finding("\n".join(lines), numbers, headline)

    def overview(self) -> Tables:
        """Return both measures, and their differences to random tokens."""
        found = {measure.capitalize(): self.measured(measure) for measure, *_ in _QUESTIONS}
        return found | {
            f"{measure.capitalize()} against random tokens": self.against("random", measure)
            for measure, *_ in _QUESTIONS
        }

    def charts(self) -> Charts:
        """Return ``comprehensiveness`` and ``sufficiency`` by explanation."""
        return {measure: drops(self.measured(measure), label) for measure, label, *_ in _QUESTIONS}

    def sections(self) -> list[Section]:
        """Return each measure with its numbers, and the differences to random tokens."""
        found = []
        for measure, label, *_ in _QUESTIONS:
            control = self.against("random", measure)
            found += [
                Section(measure, label, [_WORDS[measure]], [measure], self.measured(measure)),
                Section(
                    f"{measure}-random",
                    f"{label}, against random tokens",
                    [_CONTROL],
                    frame=control,
                ),
            ]
        return found


_QUESTIONS: tuple[tuple[Measure, str, str, bool], ...] = (
    ("comprehensiveness", "Probability lost without the tokens", "Most needed", True),
    ("sufficiency", "Probability lost with the tokens alone", "Most sufficient", False),
)

_WORDS = {
    "comprehensiveness": "The first 1, 5, 10, 20 and 50 % of the tokens in each explanation's order are taken out of "
    "the text. Mean loss of the probability of the predicted class: large if the tokens are needed.",
    "sufficiency": "All other tokens are taken out. The same loss: small, or negative, if the tokens are enough.",
}
_CONTROL = (
    "Mean difference to as many tokens chosen at random, on the same texts. An interval without 0 is a difference; "
    "intervals are not widened for the number of explanations compared."
)


def drops(means: pl.DataFrame, title: str) -> AnyChart:
    """Return the mean loss of each explanation with its interval."""
    drawn = means.select("explanation", "mean", "low", "high")
    return intervals(drawn, "explanation", "low", "high", "mean", x_title=title, title=title)
