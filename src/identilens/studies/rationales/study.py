"""Decisions of a model: the tokens that each needs, and whether explanations put these tokens first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from math import ceil
from typing import Any

import numpy as np
import polars as pl
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.measures.attention.determined import functional_interval
from identilens.measures.explanations.orders import (
    SHARES,
    comprehensiveness,
    removal_order,
    removal_sets,
    sufficiency,
)
from identilens.models.continuations import answer_ids, followed
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap
from identilens.models.padding import is_per_token
from identilens.models.token_names import joined
from identilens.runs.settings import NonNegative, Positive, Settings
from identilens.runs.study import Output, study_function
from identilens.runs.tables import table_of
from identilens.studies.faithfulness.inputs import FinalStates, attributions, captum
from identilens.studies.heads import TextStudy
from identilens.studies.outcomes import ROUNDING
from identilens.studies.rationales.result import TOLERANCE, Rationales

BATCH = 32
"""Number of sets of tokens in one run of the model."""

KEPT = 0.9
"""Share of an answer's probability with which tokens are enough for it."""

MATTERS = 0.1
"""Share of an answer's probability by which it changes without a token that matters."""


Labels = tuple[int, ...]
"""An answer by number: a class, or the tokens that follow a text."""


class Decision:
    """The answer of a model to one text: the class of a classifier, or the next tokens of a language model.

    Args:
        lens: The model.
        item: The text.
        answers: Names of the answers that are looked at, by number.

    Attributes:
        labels: Of these answers the most likely one.
        own: The answer that the model gives, of as many tokens: the most likely token each time.
        probability: Probability of the answer, a scalar; of several tokens the product of theirs.
        continues: Whether it is what follows a text for a language model.
        removable: Positions of the tokens that are no special tokens, such as [CLS]. Of a text for a language model the
            last token stays, too: the answer is what follows it.

    Raises:
        InputError: For a text that cannot be followed by several tokens, or an answer of probability 0.
    """

    def __init__(self, lens: Lens, item: Item, answers: Mapping[Labels, str]) -> None:
        self._lens, self._item = lens, item
        whole = class_probabilities(lens, [item])[0, 0]
        self.continues = len(whole) != lens.model.config.num_labels
        each = whole.tolist()
        found = {
            labels: self._likely([item], labels)[0] if labels[1:] else each[labels[0]]
            for labels in answers
        }
        self.labels = max(found, key=found.__getitem__)
        self.probability: Float[Tensor, ""] = torch.as_tensor(
            found[self.labels], dtype=torch.float64
        )
        if not self.probability:
            raise InputError(
                f"the answer {answers[self.labels]!r:.80} has a probability too small for a number. Name a shorter or "
                "likelier one."
            )
        self.own: Labels = (int(whole.argmax()),)
        while len(self.own) < len(self.labels):
            self.own += (int(class_probabilities(lens, [followed(lens, item, self.own)]).argmax()),)
        ids = item.tensors["input_ids"]
        special = set()
        if lens.tokenizer is not None:
            # The unknown token is a word of the text.
            special = set(lens.tokenizer.all_special_ids) - {lens.tokenizer.unk_token_id}
        fixed = torch.isin(ids, torch.tensor(sorted(special), dtype=torch.long))
        fixed[-1] |= self.continues
        self.removable: Int[Tensor, " token"] = (~fixed).nonzero()[:, 0]

    def probabilities(self, kept: Bool[Tensor, "*set token"]) -> Float[Tensor, "*set"]:
        """Return the probability of the answer when the text has only some of its removable tokens.

        The other tokens are taken out of the text; all that are not removable stay.
        """
        positions = torch.ones(*kept.shape[:-1], self._item.length, dtype=torch.bool)
        positions[..., self.removable] = kept
        sets, places = positions.flatten(0, -2).unique(dim=0, return_inverse=True)
        sizes, found = sets.sum(-1), torch.empty(len(sets), dtype=torch.float64)
        # Texts of one length make a batch without padding: families disagree about its side and its token. Decoders
        # without such a token run one text at a time, and so do language models, whose logits need much memory.
        padding = getattr(self._lens.model.config.get_text_config(), "pad_token_id", None)
        many = BATCH if padding is not None and not self.continues else 1
        for size in sizes.unique():
            for batch in (sizes == size).nonzero()[:, 0].split(many):
                items = [_only(self._item, positions) for positions in sets[batch]]
                found[batch] = self._likely(items, self.labels)
        return found[places].view(kept.shape[:-1])

    def explained(self, seed: int, attribution: bool) -> dict[str, Float[Tensor, " token"]]:
        """Return the explanations of the decision by the removable tokens, by name.

        Explanations of final states are averaged over the positions, by how much the logit depends on each: the norm of
        its gradient. For a classifier that reads the first token only, they are those of the first token's state; for a
        language model those of the states before each token of the answer, whose logits are added.
        """
        item = followed(self._lens, self._item, self.labels[:-1])
        decide = HiddenMap(self._lens, item, whole=True)

        def logit(output: Any) -> Tensor:
            # A language model has logits of all positions; those of the answer are the last ones.
            last = output.logits.flatten(0, -2)[-len(self.labels) :]
            return last[range(len(last)), self.labels].sum()

        output = decide.run(decide.inputs.clone().requires_grad_())
        [gradient] = torch.autograd.grad(logit(output), [output.hidden_states[-1]])
        reading = torch.linalg.vector_norm(gradient[0].double(), dim=-1).cpu()
        read = reading.nonzero()[:, 0]
        states = FinalStates(self._lens, item).explained(read.tolist(), seed, False)
        found = {name: reading[read] / reading.sum() @ scores for name, scores in states.items()}
        if attribution:

            def logits(batch: Tensor) -> Tensor:
                return torch.stack([logit(decide.run(inputs)) for inputs in batch])

            found |= {
                name: one[0].detach().cpu()
                for name, one in attributions([logits], decide.inputs).items()
            }
        return {name: scores[self.removable].double() for name, scores in found.items()}

    def _likely(self, items: Sequence[Item], labels: Labels) -> Float[Tensor, " text"]:
        """Return the probability of an answer to each text; texts for a language model have one length."""
        many = len(labels)
        continued = [followed(self._lens, item, labels[:-1]) for item in items]
        each = class_probabilities(self._lens, continued, many)
        return each[:, range(many), labels].prod(-1)


def class_probabilities(
    lens: Lens, items: Sequence[Item], steps: int = 1
) -> Float[Tensor, "text step label"]:
    """Return the probability of each class for each text; of a language model, of each token at the last steps.

    Texts for a language model have one length; the last step is that of the token after the text.

    Raises:
        InputError: If the model neither classifies texts into two classes or more, nor predicts the next token.
    """
    if any("input_ids" not in item.tensors for item in items):
        raise InputError("expected texts; their tokens are removed.")
    batches = lens.batches(items, range(len(items)), len(items))
    parts = [
        lens.run([items[number] for number in batch], whole=True).get("logits") for batch in batches
    ]
    logits = None if parts[0] is None else torch.cat(parts)
    if logits is not None and logits.ndim == 2:
        logits = logits[:, None]
    elif logits is not None and (
        # Classes of each token, or tokens of a model that reads both sides.
        logits.shape[2] == lens.model.config.num_labels or lens.sites(items[0])[0].kind != "decoder"
    ):
        logits = None
    if logits is None or logits.shape[2] < 2:
        raise InputError(
            f"expected a model that classifies texts, or predicts the next token; {type(lens.model).__name__} gives no "
            "logits of two classes or more, nor of a token after the text. Pass a fine-tuned checkpoint, such as a "
            "model of class BertForSequenceClassification, or a language model, such as GPT2LMHeadModel."
        )
    return logits[:, -steps:].double().softmax(-1).cpu()


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
        decision: Name of the class, or what follows the text, that is looked at: the next token or an answer of several
            tokens. Default: the class or next token that the model decides for. The space before a word may be left
            out.
        attribution: Also gradient × input, integrated gradients and occlusion, which need captum.
        max_length: Cut longer texts to this many tokens.
        seed: Seed of the random numbers.
    """

    draws: Positive = 5
    decision: str | None = None
    attribution: bool = False
    max_length: Positive | None = None
    seed: NonNegative = 0


class RationaleStudy(TextStudy[RationaleSettings, Rationales]):
    """Show which tokens a model's decision needs, and test whether explanations put these tokens first.

    The decision is the class of a classifier, or of a language model the next token or a given answer of several
    tokens. Each token of the text is taken out alone, and the probability of the decision is taken again; a few tokens
    are found that alone keep it. The first 1, 5, 10, 20 and 50 % of the tokens in the order of an explanation are
    removed (comprehensiveness) or kept alone (sufficiency; DeYoung et al. 2020). As a control, as many tokens are
    chosen at random. Definitions: docs/faithfulness.md.

    Args:
        lens: A model that classifies texts, or predicts the next token, with one stack.
        texts: Texts, pairs, token ids or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used, or a model that neither classifies nor predicts.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> config = idl.lab.IdentifiableEncoderConfig(heads="add", d_k=4, hidden_size=32, vocab_size=50)
        >>> lens = idl.Lens(idl.lab.IdentifiableEncoderForSequenceClassification(config))
        >>> found = idl.rationales(lens, [[3, 4, 5, 6, 7], [8, 9, 10]], draws=2)
        >>> found.table["explanation"].unique(maintain_order=True).to_list()
        ['rollout_raw', 'rollout_effective', 'rollout_norm', 'alti', 'hta', 'random']
        >>> next_word = idl.rationales(idl.load("bundled-decoder"), "She put it on the", draws=2, decision="table")
        >>> next_word.needed["answer"][0], next_word.needed["token"].to_list()
        (' table', ['S', 'he', ' put', ' it', ' on'])
        >>> words = idl.rationales(idl.load("bundled-decoder"), "She put it on the", draws=2, decision="table and left")
        >>> words.needed["answer"][0]
        ' table and left'
    """

    name = "rationales"
    settings_type = RationaleSettings
    result_type = Rationales

    def __init__(self, lens: Lens, texts: Any, settings: RationaleSettings) -> None:
        super().__init__(lens, texts, settings)
        config: Any = lens.model.config
        known = class_probabilities(lens, self.items[:1]).shape[2]
        names, words = config.id2label, settings.decision
        continues = known != config.num_labels
        if continues:
            # Some models have logits of more tokens than their vocabulary has.
            known = min(known, len(lens.tokenizer or range(known)))
            names = dict(enumerate(lens.reader.names(range(known))))
        self._names = names
        self.answers: dict[Labels, str] = {
            (label,): name
            for label, name in names.items()
            if words in (None, name, name.strip(" "))
        }
        if words and not self.answers and continues and lens.tokenizer:
            self.answers = {ids: self._named(ids) for ids in answer_ids(lens, words)}
        if not self.answers:
            first = ", ".join(map(repr, list(names.values())[:5]))
            expected = f"to be one of the model's {len(names)} classes or tokens ({first}, …)"
            raise SettingError("decision", expected, words)
        if settings.attribution:
            captum()

    def run(self, part: int) -> Output:
        """Return what one text's decision needs, and both measures of each explanation, of random orders averaged.

        A text with fewer than two tokens that can be removed has no rows.
        """
        decision, settings, rows = (
            Decision(self.lens, self.items[part], self.answers),
            self.settings,
            [],
        )
        tokens = len(decision.removable)
        if tokens < 2:
            return Output({name: table_of(one, ()) for name, one in Rationales.schema.items()})
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
                    "predicted": decision.labels[0],
                    "probability": float(decision.probability),
                    "explanation": name,
                    "comprehensiveness": float(lost.mean()),
                    "sufficiency": float(left.mean()),
                }
            )
        table = table_of(Rationales.schema["table"], rows)
        return Output({"table": table, "needed": self.needed(part, decision)})

    def needed(self, part: int, decision: Decision) -> pl.DataFrame:
        """Return what the answer to one text loses without each token, and the tokens that are enough.

        Of a language model also how much the answer's row attends to those that matter, in every alternative.
        """
        tokens = len(decision.removable)
        changes = decision.probabilities(~torch.eye(tokens).bool()) - decision.probability
        # Something of the text must stay.
        least = int(tokens == self.items[part].length)
        sets = removal_sets(changes.argsort(stable=True), range(least, tokens + 1))
        keeps = decision.probabilities(sets) >= KEPT * decision.probability
        [names] = self.items[part].tokens.values()
        places = decision.removable.tolist()
        matters = sets[keeps][0] | (changes.abs() >= MATTERS * decision.probability)
        attended = torch.full((3, tokens), torch.nan, dtype=torch.float64)
        if decision.continues and not decision.labels[1:] and matters.any():
            attended[:, matters] = self._attended(part, decision.removable[matters])
        columns = {
            "text": part,
            "answer": self.answers[decision.labels],
            "own_answer": self._named(decision.own),
            "probability": float(decision.probability),
            "position": places,
            "token": [names[place] for place in places],
            "change": changes.tolist(),
            "enough": sets[keeps][0].tolist(),
            **dict(zip(("attention", "lo", "hi"), attended.tolist(), strict=True)),
        }
        frame = pl.DataFrame(columns, schema=pl.Schema(Rationales.schema["needed"]))
        return frame.with_columns(pl.col("attention", "lo", "hi").fill_nan(None))

    def _named(self, labels: Labels) -> str:
        return joined([self._names.get(label, str(label)) for label in labels])

    def _attended(
        self, part: int, keys: Int[Tensor, " key"]
    ) -> Float[Tensor, "value_lo_hi key"] | float:
        """Return the last row's weights on some keys with their intervals, each a mean over all heads."""
        item, found = self.items[part], []
        sites = self.lens.sites(item)

        def keep(call: AttentionCall) -> Tensor:
            output, weights = call.attend()
            for head in CapturedLayer.of(call, sites[call.index], output, weights).heads:
                units = torch.eye(len(head.keys))[keys]
                row = head.attention[-1], head.at(-1), units
                # Heads choose independently of each other, so that the mean has the mean of the ends.
                ends = (
                    None
                    if head.sink
                    else functional_interval(
                        *row, visible=head.seen(-1), tolerance=ROUNDING[TOLERANCE]
                    )
                )
                found.append(ends and torch.stack([ends.value, ends.lo, ends.hi]))
            return output

        self.lens.run([item], keep)
        return torch.nan if None in found else torch.stack(found).mean(0)


rationales = study_function(RationaleStudy, "rationales")
