"""What happens to a model's answer when a head, or one key of one row, is removed."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from identilens.errors import SettingError
from identilens.measures.attention.influence import norm_share
from identilens.models.continuations import answer_ids, followed
from identilens.models.inputs import Item
from identilens.models.layout import chosen_heads
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.sequences import sides
from identilens.models.substitution import Replacements, Rows
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.heads import Place, TextHeads, TextStudy, check_asked
from identilens.studies.influence.result import Influence
from identilens.studies.influence.settings import InfluenceSettings
from identilens.studies.outcomes import (
    asked_answer,
    head_effects,
    head_estimates,
    positions,
    removals,
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
        self._decisions: Sequence[tuple[int, ...]] = ()
        if settings.decision and lens.tokenizer is not None and lens.model.can_generate():
            self._decisions = answer_ids(lens, settings.decision)
        super().__init__(lens, texts, settings)
        sites = lens.sites(self.items[0])
        self.chosen = list(chosen_heads(sites, settings.layers, settings.heads, settings.kind))
        if settings.decision is not None and (
            not self._decisions or any(site.kind != "decoder" for site in sites)
        ):
            expected = (
                "for a model that predicts the next token, as a text that its tokenizer knows"
            )
            raise SettingError("decision", expected, settings.decision)

    def check_rows(self) -> None:
        """Check that the texts, with the answer that follows them, have the rows that are asked for."""
        if not (self._decisions and self.settings.queries):
            return super().check_rows()
        longest = max(self._decisions, key=len)
        texts = [self._decided(item, longest).item for item in self.items]
        return check_asked(texts, self.settings.queries)

    def run(self, part: int) -> Output:
        """Return the effects of one text's heads, and of the keys of the rows that were named."""
        item, settings = self.items[part], self.settings
        outcome: Any = settings.outcome
        last = item.length - 1
        answer = Answer(self.lens, item, outcome)
        if settings.answer is not None:
            answer = asked_answer(self.lens, item, settings, item.tokens, part)
        if self._decisions:
            meant = [self._decided(item, ids) for ids in self._decisions]
            answer = max(meant, key=lambda one: float(one.likelihoods(one.own).sum()))
            item = answer.item
        estimates: Sequence[float | None] = [None] * len(self.chosen)
        if settings.directions:
            estimates = head_estimates(answer, self.chosen, settings.directions, settings.seed)
        numbers = self._removed(estimates)
        removed = [self.chosen[number] for number in numbers]
        without = dict(
            zip(numbers, removals(answer, removed, "zero", partial(_removal, answer)), strict=True)
        )
        means = dict(zip(numbers, head_effects(answer, removed, "mean"), strict=True))
        heads = TextHeads(self.lens, [item], ())
        words = self.lens.reader.names(answer.following)
        known = answer.likelihoods(answer.own).tolist()
        rows: dict[str, list[Row]] = {name: [] for name in Influence.schema}
        for number, (one, estimate) in enumerate(zip(self.chosen, estimates, strict=True)):
            head = Place(part, *one).row
            change, gains = without.get(number, ({"effect": None, "log_change": None}, None))
            rows["table"].append(
                {**head, **change, "effect_of_mean": means.get(number), "estimate": estimate}
            )
            if gains is None:
                continue
            for at, gain in enumerate(gains.tolist()):
                token = {
                    "query": last + at,
                    "query_token": item.tokens["encoder"][last + at],
                    "token": words[at],
                    "log_probability": known[at],
                    "log_change": gain,
                }
                rows["answer_tokens"].append({**head, **token})
            if settings.queries is not None:
                rows["hidden_keys"] += self._keys(answer, Place(0, *one), heads, head)
        tables = {name: table_of(Influence.schema[name], rows[name]) for name in rows}
        return Output(tables)

    def _removed(self, estimates: Sequence[float | None]) -> list[int]:
        """Return the numbers of the heads that are removed, by their estimates in a text."""
        numbers = range(len(self.chosen))
        most = self.settings.removed or (_LARGEST if len(numbers) > _MANY else len(numbers))
        if not self.settings.directions:
            return [*numbers]
        return sorted(sorted(numbers, key=lambda one: -(estimates[one] or 0.0))[:most])

    def _decided(self, item: Item, ids: Sequence[int]) -> Answer:
        """Return the predictions of an answer's tokens after a text."""
        longer, last = followed(self.lens, item, ids[:-1]), item.length - 1
        return Answer(self.lens, longer, "prediction", range(last, last + len(ids)), ids)

    def _keys(self, answer: Answer, place: Place, heads: TextHeads, named: Row) -> Iterator[Row]:
        """Yield the effect of each key with a weight in the rows that were named."""
        head = heads.read(place)
        tokens = heads.tokens(head, place.text)
        side = sides(head.kind, answer.item.tokens)
        for query in heads.requested(place, self.settings.queries):
            row = head.attention[query]
            shares = norm_share(row[None], head.at(query))[0].tolist()
            for key in row.nonzero()[:, 0].tolist():
                others = row.index_fill(0, torch.tensor([key]), 0.0)
                left = float(others.sum())
                change: Row = {"effect": None, "log_change": None}
                if left:
                    hidden: Replacements = {head.address: Rows([query], others[None] / left)}
                    change, _ = _removal(answer, answer.given(hidden), answer.own)
                yield {
                    **named,
                    "query": query,
                    "query_token": tokens[side.query][query],
                    "key": key,
                    "key_token": tokens[side.key][key],
                    "weight": float(row[key]),
                    "norm_share": shares[key],
                    **change,
                }


def _removal(answer: Answer, after: Tensor, before: Tensor) -> tuple[Row, Tensor]:
    """Return the change of an outcome, and that of the log probability of each token of an answer, if one is given."""
    gains = answer.likelihoods(after) - answer.likelihoods(before)
    change = {
        "effect": answer.between(after, before) / positions(answer),
        "log_change": float(gains.sum()) if answer.following else None,
    }
    return change, gains


influence = study_function(InfluenceStudy, "influence")
