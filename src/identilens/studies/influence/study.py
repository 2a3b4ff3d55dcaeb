"""What happens to a model's answer when a head, or one key of one row, is removed."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from identilens.errors import SettingError
from identilens.measures.attention.influence import norm_share
from identilens.models.continuations import answer_ids, followed
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.sequences import sides
from identilens.models.substitution import Rows
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.heads import Place, TextStudy, check_asked, filled
from identilens.studies.influence.result import Influence
from identilens.studies.influence.settings import InfluenceSettings
from identilens.studies.outcomes import (
    asked_answer,
    head_effects,
    head_estimates,
    log_likelihoods,
    mean_change,
)

_MANY, _LARGEST = 512, 32
"""Heads from which on only so many of them are removed by default."""


class InfluenceStudy(TextStudy[InfluenceSettings, Influence]):
    """Remove heads, and keys of rows, one at a time, and see what happens to the model's answer.

    A head that is removed writes nothing (zero), or at each row the mean of its output over the text (mean); all that
    comes after it is computed by the model. The change of the prediction is KL(p ‖ p') in nats, the mean over the
    positions; that of the final hidden states is ‖h' − h‖ / ‖h‖. Of a given answer the change of its log probability
    has a sign: it falls without a head that the answer needs. Beside it stands an estimate to first order for all
    heads, from a few backward passes. A key is hidden from one row, whose other weights are scaled up. Definitions:
    docs/concepts.md; removal of heads: Michel et al. 2019 ("Are Sixteen Heads Really Better than One?").

    Args:
        lens: The model.
        texts: Texts, pairs, token ids, images or a batch; see `Lens.capture`.

    Raises:
        InputError: For texts or settings that cannot be used.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> found = idl.influence(lens, "The cat sat on the mat.", layers=2)
        >>> found.table.sort("effect")["head"][-1]
        4
    """

    name = "influence"
    settings_type = InfluenceSettings
    result_type = Influence

    def __init__(self, lens: Lens, texts: Any, settings: InfluenceSettings) -> None:
        super().__init__(lens, texts, settings)
        self.places(0)  # names a head that the model lacks

    def check_rows(self) -> None:
        """Check that a decision can follow the texts, and that they, with it, have the rows that are asked for."""
        lens, words, queries = self.lens, self.settings.decision, self.settings.queries
        self.decisions = [()]
        if words is not None:
            predicts = lens.model.can_generate() and lens.sites(self.items[0])[0].kind == "decoder"
            self.decisions = answer_ids(lens, words) if predicts and lens.tokenizer else []
        if not self.decisions:
            raise SettingError(
                "decision",
                "for a model that predicts the next token, as a text that its tokenizer knows",
                words,
            )
        if queries:
            texts = [
                followed(lens, item, ids[:-1]) for item in self.items for ids in self.decisions
            ]
            check_asked(texts, queries)

    def run(self, part: int) -> Output:
        """Return the effects of one text's heads, and of the keys of the rows that were named."""
        item, settings = self.items[part], self.settings
        answer = self._answer(item, part)
        places = self.places(part)
        rows = [slot.row for slot in places]
        numbers = range(len(rows))
        if settings.directions:
            estimates = head_estimates(answer, self.chosen, settings.directions, settings.seed)
            for row, estimate in zip(rows, estimates, strict=True):
                row["estimate"] = estimate
            most = settings.removed or (_LARGEST if len(rows) > _MANY else None)
            numbers = sorted(sorted(numbers, key=estimates.__getitem__, reverse=True)[:most])
        removed = [self.chosen[number] for number in numbers]
        changes = head_effects(answer, removed, measure=_removal)
        means = head_effects(answer, removed, "mean")
        known = answer.likelihoods(answer.unchanged)
        tokens = {
            "query": answer.positions,
            "query_token": answer.item.tokens.get("encoder", ())[-len(known) :],
            "token": self.lens.reader.names(answer.following),
            "log_probability": known,
        }
        parts: dict[str, list[Any]] = {name: [] for name in Influence.schema}
        for number, (effect, *gains), mean in zip(numbers, changes, means, strict=True):
            slot = places[number]
            rows[number] |= {**_columns(effect, *gains), "effect_of_mean": mean}
            if gains:
                parts["answer_tokens"].append({**slot.row, **tokens, "log_change": gains})
            if settings.queries is not None:
                parts["hidden_keys"].append([*self._keys(answer, slot)])
        return Output(filled(Influence.schema, {**parts, "table": [rows]}))

    def _answer(self, item: Item, text: int) -> Answer:
        """Return the outcome on a text: that of the likeliest form of a given answer, or what is asked for."""
        lens = self.lens
        settings: Any = self.settings
        if settings.answer is not None:
            return asked_answer(lens, item, settings, item.tokens, text)
        if settings.decision is None:
            return Answer(lens, item, settings.outcome)
        ids = max(self.decisions, key=lambda ids: float(log_likelihoods(lens, [item], ids)))
        longer = followed(lens, item, ids[:-1])
        return Answer(lens, longer, settings.outcome, range(item.length - 1, longer.length), ids)

    def _keys(self, answer: Answer, slot: Place) -> Iterator[Row]:
        """Yield the effect of each key with a weight in the rows that were named."""
        item = answer.item
        head = self.read(item, slot)
        tokens, side = self.tokens(item, head), sides(head.kind, item.tokens)
        for query in self.requested(item, slot, self.settings.queries):
            row = head.attention[query]
            shares = norm_share(row[None], head.projected_for(query))[0].tolist()
            for key in row.nonzero()[:, 0].tolist():
                others = row.clone()
                others[key] = 0.0
                left, change = float(others.sum()), {}
                if left:
                    hidden = {head.address: Rows([query], others[None] / left)}
                    changes = _removal(answer, *answer.replaced(query, hidden))
                    change = _columns(*changes.tolist())
                yield {
                    **slot.row,
                    "query": query,
                    "query_token": tokens[side.query][query],
                    "key": key,
                    "key_token": tokens[side.key][key],
                    "weight": float(row[key]),
                    "norm_share": shares[key],
                    **change,
                }


def _removal(answer: Answer, after: Tensor, before: Tensor) -> Tensor:
    """Return the change of an outcome, and that of the log probability of each token of an answer, if one is given."""
    gains = answer.likelihoods(after) - answer.likelihoods(before)
    return torch.cat([mean_change(answer, after, before)[..., None].cpu(), gains], -1)


def _columns(effect: float, *gains: float) -> Row:
    return {"effect": effect, "log_change": sum(gains) if gains else None}


influence = study_function(InfluenceStudy, "influence")
