"""Faithfulness of explanations, tested by removing parts; their stability over weights with the same output."""

from typing import Any

import polars as pl

from identilens.models.lens import Lens
from identilens.runs.study import Output, study_function
from identilens.studies.faithfulness.decisions import (
    decide,
    decision_scores,
    token_needs,
)
from identilens.studies.faithfulness.evaluation import Table
from identilens.studies.faithfulness.result import Faithfulness
from identilens.studies.faithfulness.rows import (
    alternatives_of,
    determinacy,
    explanations,
    row_scores,
    sampled_maps,
)
from identilens.studies.faithfulness.settings import FaithfulnessSettings
from identilens.studies.heads import TextHeads, TextStudy


class FaithfulnessStudy(TextStudy[FaithfulnessSettings, Faithfulness]):
    """Test explanations of attention rows or of decisions: do their orders follow what removing parts does.

    From each text some maps and rows are drawn. Faithful: keys are removed in each explanation's order, and one by one;
    the change of the final hidden states, logits and loss gives a rank correlation and the normalised area over the
    perturbation curve. Stable: the agreement of the explanation with itself over other weights with the same output.
    With ``decision``, tokens of the text are taken out instead, one by one and in each explanation's order, or are kept
    alone, and the probability of the decision is taken again (comprehensiveness and sufficiency, DeYoung et al. 2020).
    Every order is tested against random orders. Definitions: docs/faithfulness.md.

    Args:
        lens: The model; for decisions one that classifies texts or predicts the next token, with one stack.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, a head the model lacks, or attention with sinks.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        NumericalError: If an answer cannot be certified.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled")
        >>> found = idl.faithfulness(lens, idl.examples()[0], layers=5, rows=1, groups=(1, 2), interventions="zero")
        >>> found
        Faithfulness: ...
        >>> found = idl.faithfulness(idl.load("bundled-decoder"), "She put it on the", draws=2, decision="table")
        >>> found.needed["answer"][0], found.needed["token"].to_list()
        (' table', ['S', 'he', ' put', ' it', ' on'])
    """

    name = "faithfulness"
    settings_type = FaithfulnessSettings
    result_type = Faithfulness

    def __init__(self, lens: Lens, texts: Any, settings: FaithfulnessSettings) -> None:
        super().__init__(lens, texts, settings)
        if settings.decision is None:
            self._heads = TextHeads.of(lens, self.items, settings, settings.kind)
        else:
            decide(lens, self.items[0], settings.decision)

    def run(self, part: int) -> Output:
        """Return the tables of one text; with fewer than two tokens that can be removed it has no decision."""
        item, settings = self.items[part], self.settings
        tables: dict[str, list[Table]] = {name: [] for name in Faithfulness.schema}
        maps = ()
        if settings.decision is None:
            maps = sampled_maps(self._heads, part, settings)
        elif len((decision := decide(self.lens, item, settings.decision)).removable) > 1:
            tables["table"] += decision_scores(decision, part, settings)
            tables["needed"].append({"text": part, **token_needs(decision)})
        for drawn in maps:
            explained = explanations(drawn, drawn.weights)
            others = alternatives_of(drawn, settings.alternatives)
            tables["table"] += row_scores(drawn, explained, settings)
            if others:
                tables["determinacy"] += determinacy(drawn, explained, others)
        return Output(
            {
                name: pl.concat(
                    [pl.DataFrame(schema=pl.Schema(columns)), *map(pl.DataFrame, tables[name])],
                    how="diagonal_relaxed",
                ).fill_nan(None)
                for name, columns in Faithfulness.schema.items()
            }
        )


faithfulness = study_function(FaithfulnessStudy, "faithfulness")
