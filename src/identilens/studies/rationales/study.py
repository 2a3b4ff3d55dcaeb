"""Tests of explanations of a classifier's decision: are the first tokens needed, and are they enough."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.measures.explanations.orders import (
    SHARES,
    comprehensiveness,
    removal_order,
    removal_sets,
    sufficiency,
)
from identilens.models.inputs import Item, is_per_token
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap
from identilens.runs.settings import NonNegative, Positive, Settings
from identilens.runs.study import Output, study_function
from identilens.runs.tables import table_of
from identilens.studies.faithfulness.inputs import FinalStates, attributions, captum
from identilens.studies.heads import TextStudy
from identilens.studies.items import read_items
from identilens.studies.rationales.result import Rationales

BATCH = 32
"""Number of sets of tokens in one run of the model."""


class Decision:
    """The class that a classifier predicts for one text.

    Attributes:
        label: The class.
        probability: Its probability, a scalar.
        removable: Positions of the tokens that are no special tokens, such as [CLS].
    """

    def __init__(self, lens: Lens, item: Item) -> None:
        self._lens, self._item = lens, item
        whole = class_probabilities(lens, [item])[0]
        self.label = int(whole.argmax())
        self.probability: Float[Tensor, ""] = whole[self.label]
        ids = item.tensors["input_ids"]
        special = set()
        if lens.tokenizer is not None:
            # The unknown token is a word of the text.
            special = set(lens.tokenizer.all_special_ids) - {lens.tokenizer.unk_token_id}
        fixed = torch.isin(ids, torch.tensor(sorted(special), dtype=torch.long))
        self.removable: Int[Tensor, " token"] = (~fixed).nonzero()[:, 0]

    def probabilities(self, kept: Bool[Tensor, "*set token"]) -> Float[Tensor, "*set"]:
        """Return the probability of the class when the text has only some of its removable tokens.

        The other tokens are taken out of the text; special tokens stay.
        """
        positions = torch.ones(*kept.shape[:-1], self._item.length, dtype=torch.bool)
        positions[..., self.removable] = kept
        sets, places = positions.flatten(0, -2).unique(dim=0, return_inverse=True)
        sizes, found = sets.sum(-1), torch.empty(len(sets), dtype=torch.float64)
        # Texts of one length make a batch without padding: families disagree about its side and its token. Decoders
        # without such a token classify one text at a time.
        padding = getattr(self._lens.model.config.get_text_config(), "pad_token_id", None)
        for size in sizes.unique():
            for batch in (sizes == size).nonzero()[:, 0].split(1 if padding is None else BATCH):
                items = [_only(self._item, positions) for positions in sets[batch]]
                found[batch] = class_probabilities(self._lens, items)[:, self.label]
        return found[places].view(kept.shape[:-1])

    def explained(self, seed: int, attribution: bool) -> dict[str, Float[Tensor, " token"]]:
        """Return the explanations of the decision by the removable tokens, by name.

        Explanations of final states are averaged over the positions, by how much the logit depends on each: the norm of
        its gradient. For a classifier that reads the first token only, they are those of the first token's state.
        """
        decide = HiddenMap(self._lens, self._item, whole=True)
        output = decide.run(decide.inputs.clone().requires_grad_())
        [gradient] = torch.autograd.grad(output.logits[0, self.label], [output.hidden_states[-1]])
        reading = torch.linalg.vector_norm(gradient[0].double(), dim=-1).cpu()
        read = reading.nonzero()[:, 0]
        states = FinalStates(self._lens, self._item).explained(read.tolist(), seed, False)
        found = {name: reading[read] / reading.sum() @ scores for name, scores in states.items()}
        if attribution:

            def logit(batch: Tensor) -> Tensor:
                return torch.stack([decide.run(inputs).logits[0, self.label] for inputs in batch])

            found |= {
                name: one[0].detach().cpu()
                for name, one in attributions([logit], decide.inputs).items()
            }
        return {name: scores[self.removable].double() for name, scores in found.items()}


def class_probabilities(lens: Lens, items: Sequence[Item]) -> Float[Tensor, "text label"]:
    """Return the probability of each class for each text.

    Raises:
        InputError: If the model does not classify texts into two classes or more.
    """
    if any("input_ids" not in item.tensors for item in items):
        raise InputError("expected texts; their tokens are removed.")
    batches = lens.batches(items, range(len(items)), len(items))
    parts = [
        lens.run([items[number] for number in batch], whole=True).get("logits") for batch in batches
    ]
    logits = None if parts[0] is None else torch.cat(parts)
    if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
        raise InputError(
            f"expected a model that classifies texts; {type(lens.model).__name__} gives no logits of two classes or "
            "more. Pass a fine-tuned checkpoint, such as a model of class BertForSequenceClassification."
        )
    return logits.double().softmax(-1).cpu()


def _only(item: Item, kept: Bool[Tensor, " position"]) -> Item:
    tensors = {name: one[kept] if is_per_token(name) else one for name, one in item.tensors.items()}
    return Item(
        tensors,
        {kind: tuple(compress(names, kept.tolist())) for kind, names in item.tokens.items()},
    )


@dataclass(frozen=True, kw_only=True)
class RationaleSettings(Settings):
    """The explanations that are tested, and their control.

    Attributes:
        draws: Number of random orders of the tokens of each text, the control.
        attribution: Also gradient × input, integrated gradients and occlusion, which need captum.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of the random numbers.
    """

    draws: Positive = 5
    attribution: bool = False
    max_length: Positive | None = None
    seed: NonNegative = 0


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
        """Return both measures of each explanation of one text, those of random orders averaged.

        A text with fewer than two tokens that can be removed has no rows.
        """
        decision, settings, rows = Decision(self.lens, self.items[part]), self.settings, []
        tokens = len(decision.removable)
        if tokens < 2:
            return Output({"table": table_of(Rationales.schema["table"], rows)})
        seed = int(np.random.default_rng([settings.seed, part]).integers(2**31))
        generator = torch.Generator().manual_seed(seed)
        explained = decision.explained(seed, settings.attribution)
        scores = {name: explanation[None] for name, explanation in explained.items()}
        scores["random"] = torch.rand(
            settings.draws, tokens, generator=generator, dtype=torch.float64
        )
        # At least one token is removed, and at least one stays.
        sizes = [min(ceil(share * tokens), tokens - 1) for share in SHARES]
        first = removal_sets(removal_order(torch.cat(list(scores.values())), generator), sizes)
        needed = comprehensiveness(decision.probability, decision.probabilities(~first))
        enough = sufficiency(decision.probability, decision.probabilities(first))
        counts = [len(orders) for orders in scores.values()]
        for name, lost, left in zip(
            scores, needed.split(counts), enough.split(counts), strict=True
        ):
            rows.append(
                {
                    "text": part,
                    "tokens": tokens,
                    "predicted": decision.label,
                    "probability": float(decision.probability),
                    "explanation": name,
                    "comprehensiveness": float(lost.mean()),
                    "sufficiency": float(left.mean()),
                }
            )
        return Output({"table": table_of(Rationales.schema["table"], rows)})


rationales = study_function(RationaleStudy, "rationales")
