"""Faithfulness of explanations of attention maps, and their stability over weights with the same output."""

from typing import Any, ClassVar

from identilens.models.lens import Lens
from identilens.runs.study import Output, study_function
from identilens.runs.tables import table_of
from identilens.studies.faithfulness.evaluation import (
    alternatives_of,
    causal_rows,
    control_rows,
    determinacy_rows,
    token_rows,
)
from identilens.studies.faithfulness.inputs import captum
from identilens.studies.faithfulness.result import Faithfulness
from identilens.studies.faithfulness.sampling import FaithfulnessSettings, places_of, sampled_maps
from identilens.studies.heads import TextStudy
from identilens.studies.items import read_items


class FaithfulnessStudy(TextStudy[FaithfulnessSettings, Faithfulness]):
    """Test explanations of attention rows: do they follow what removing keys does; are they stable over alternatives.

    From each text some maps and rows are drawn. Faithful: keys are removed in each explanation's order, and one by one;
    the change of the final hidden states, logits and loss gives a rank correlation and the normalised area over the
    perturbation curve. Stable: the agreement of the explanation with itself over drawn weights with the same output. As
    a control, each of these alternatives is put into the model, which must change nothing beyond a measured noise
    floor. Definitions: docs/faithfulness.md.

    Args:
        lens: The model.
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
        Faithfulness: Most faithful: ...
    """

    name = "faithfulness"
    settings_type = FaithfulnessSettings
    result_type = Faithfulness
    joins: ClassVar = "audit"

    def __init__(self, lens: Lens, texts: Any, settings: FaithfulnessSettings) -> None:
        super().__init__(settings)
        self.lens = lens
        self.items = read_items(lens, texts, settings.max_length)
        places_of(lens, self.items[0], settings)
        if settings.attribution:
            captum()

    def run(self, part: int) -> Output:
        """Return the tables of the maps of one text."""
        item, rows = self.items[part], {name: [] for name in Faithfulness.schema}
        maps = sampled_maps(self.lens, item, part, self.settings)
        if self.settings.explained:
            rows["states"] += token_rows(self.lens, item, part, maps, self.settings)
        for drawn in maps:
            explained = drawn.explained(drawn.weights)
            others = alternatives_of(self.lens, item, drawn, self.settings.alternatives)
            rows["table"] += causal_rows(drawn, explained, self.settings)
            rows["determinacy"] += determinacy_rows(drawn, explained, others)
            rows["controls"] += control_rows(drawn, others)
        return Output(
            {name: table_of(columns, rows[name]) for name, columns in Faithfulness.schema.items()}
        )


faithfulness = study_function(FaithfulnessStudy, "faithfulness")
