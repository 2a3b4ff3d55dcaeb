"""How needed and how sufficient the tokens are that explanations of a classifier's decision put first."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge

from identilens.measures.explanations.orders import removal_order, removal_sets
from identilens.measures.explanations.rationales import SHARES, comprehensiveness, sufficiency
from identilens.models.lens import Lens
from identilens.runs.settings import Settings
from identilens.runs.study import Output, study_function
from identilens.runs.tables import table_of
from identilens.studies.faithfulness.inputs import captum
from identilens.studies.heads import TextStudy
from identilens.studies.items import read_items
from identilens.studies.rationales.decision import Decision, class_probabilities
from identilens.studies.rationales.result import Rationales


@dataclass(frozen=True, kw_only=True)
class RationaleSettings(Settings):
    """Which explanations are tested, and their control.

    Attributes:
        draws: Number of random orders of the tokens of each text, the control.
        attribution: Also gradient × input, integrated gradients and occlusion, which need captum.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of the random numbers.
    """

    draws: Annotated[int, Ge(1)] = 5
    attribution: bool = False
    max_length: Annotated[int | None, Ge(1)] = None
    seed: Annotated[int, Ge(0)] = 0


class RationaleStudy(TextStudy[RationaleSettings, Rationales]):
    """Test explanations of a classifier's decisions: are the tokens that they put first needed, and are they enough.

    The first 1, 5, 10, 20 and 50 % of a text's tokens are removed (comprehensiveness), or kept alone (sufficiency), and
    the probability of the class that the model predicts for the whole text is taken again (DeYoung et al. 2020). As a
    control, as many tokens are chosen at random. Definitions: docs/faithfulness.md.

    Args:
        lens: A model that classifies texts, with one stack.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, or a model that classifies no texts.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, vocab_size=50)
        >>> lens = idl.Lens(idl.lab.IdentifiableEncoderForSequenceClassification(config))
        >>> found = idl.rationales(lens, [[3, 4, 5, 6, 7], [8, 9, 10]], draws=2)
        >>> found.table["explanation"].unique(maintain_order=True).to_list()
        ['rollout_raw', 'rollout_effective', 'rollout_norm', 'alti', 'hta', 'random']
    """

    name = "rationales"
    settings_type = RationaleSettings
    result_type = Rationales

    def __init__(self, lens: Lens, texts: Any, settings: RationaleSettings) -> None:
        super().__init__(settings)
        self.lens = lens
        self.items = read_items(lens, texts, settings.max_length)
        class_probabilities(lens, self.items[:1])
        if settings.attribution:
            captum()

    def run(self, part: int) -> Output:
        """Return the rows of one text."""
        rows = rationale_rows(Decision(self.lens, self.items[part]), part, self.settings)
        return Output({"table": table_of(Rationales.schema["table"], rows)})


def rationale_rows(decision: Decision, text: int, settings: RationaleSettings) -> Iterator[dict[str, Any]]:
    """Yield both measures of each explanation, those of random orders averaged; none with fewer than two tokens."""
    tokens = len(decision.removable)
    if tokens < 2:
        return
    seed = int(np.random.default_rng([settings.seed, text]).integers(2**31))
    generator = torch.Generator().manual_seed(seed)
    scores = {name: one[None] for name, one in decision.explained(seed, settings.attribution).items()}
    scores["random"] = torch.rand(settings.draws, tokens, generator=generator, dtype=torch.float64)
    # At least one token is removed, and at least one stays.
    sizes = [min(ceil(share * tokens), tokens - 1) for share in SHARES]
    first = removal_sets(removal_order(torch.cat(list(scores.values())), generator), sizes)
    needed = comprehensiveness(decision.probability, decision.probabilities(~first))
    enough = sufficiency(decision.probability, decision.probabilities(first))
    counts = [len(one) for one in scores.values()]
    for name, lost, left in zip(scores, needed.split(counts), enough.split(counts), strict=True):
        yield {
            "text": text, "tokens": tokens, "predicted": decision.label, "probability": float(decision.probability),
            "explanation": name, "comprehensiveness": float(lost.mean()),
            "sufficiency": float(left.mean()),
        }  # fmt: skip


rationales = study_function(RationaleStudy, "rationales")
