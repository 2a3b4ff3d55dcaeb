"""Alternatives of attention weights with the same output, each put back into the model."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg.memory import wide
from identilens.measures.attention.determined import certain_mass
from identilens.measures.attention.simplex import total_variation
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.sequences import sides
from identilens.models.substitution import ModelRun, Rows
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.alternatives.answers import in_row, keep_answer
from identilens.studies.alternatives.result import ANSWER, Alternatives
from identilens.studies.alternatives.search import Found, alternatives_of, logit_rank, realisable
from identilens.studies.alternatives.settings import AlternativeSettings
from identilens.studies.heads import Place, TextStudy, filled, named_places
from identilens.studies.outcomes import asked_answer
from identilens.studies.settings import ROUNDING, tolerances

_MAPS = 2048
"""Tokens up to which the whole maps are kept beside one row that changes: longer ones do not fit into a page."""

LAST = ("last",)
"""The row that is changed where none is named."""


class AlternativeStudy(TextStudy[AlternativeSettings, Alternatives]):
    """Find other attention weights with the same output, and run the model with them.

    For each head: an alternative drawn uniformly from all (``sampled``) and the farthest found (``far``), with an upper
    bound of the distance of any. On request also one that other queries and keys give (``realisable``). Each is put
    back into the model. The changes of the final hidden state, the logits and the loss are measured. Derivations and
    limits: docs/alternatives.md.

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
        >>> import polars as pl
        >>> lens = idl.load("bundled")
        >>> result = idl.alternatives(lens, idl.examples()[0], layers=3, heads=5)
        >>> result.table.select("alternative", pl.col("mean_total_variation").round(2))
        shape: (2, 2)
        ┌─────────────┬──────────────────────┐
        │ alternative ┆ mean_total_variation │
        │ ---         ┆ ---                  │
        │ str         ┆ f64                  │
        ╞═════════════╪══════════════════════╡
        │ sampled     ┆ 0.05                 │
        │ far         ┆ 0.11                 │
        └─────────────┴──────────────────────┘
    """

    name = "alternatives"
    unit = "heads"
    settings_type = AlternativeSettings
    result_type = Alternatives

    def __init__(self, lens: Lens, texts: Any, settings: AlternativeSettings) -> None:
        super().__init__(lens, texts, settings)
        # Heads whose rows change together: of a text, of a layer of a text, or each by itself.
        shared = 1 if settings.together else 3 if settings.outcome == "layer" else 4
        places = [slot for text in range(len(self.items)) for slot in self.places(text)]
        groups = groupby(
            places, lambda slot: (slot.text, slot.site.kind, slot.site.layer, slot.head)[:shared]
        )
        self.parts = [list(group) for _, group in groups]
        # Of the current text: the run with the model's own weights, and the answer.
        self._plain: dict[int, ModelRun] = {}
        self._answers: dict[int, Answer] = {}

    def run(self, part: int) -> Output:
        """Return the rows and matrices of one head, or of heads whose rows change together, on one text."""
        apart = self.settings.outcome == "head"
        outputs = (self._apart if apart else self._together)(self.parts[part])
        return Output.joined([Output(filled(Alternatives.schema, {})), *outputs])

    def _apart(self, places: Sequence[Place]) -> Iterator[Output]:
        """Yield the tables of a head with alternatives of its own output."""
        [slot], asked = places, self.settings.queries
        item = self.items[slot.text]
        rows = self.requested(item, slot, asked) if asked else None
        if rows != []:
            head = self.read(item, slot, rows).on_processor()
            yield self._tables(slot, head, self._alternatives(slot, head))

    def _tables(
        self, slot: Place, head: Head, pairs: Iterable[tuple[Found, ModelRun | None]]
    ) -> Output:
        rows, item = [], self.items[slot.text]
        full = head.rows is None
        kept = {"raw": head.attention, "effective": head.effective} if full else {}
        for alternative, run in pairs:
            if slot.text not in self._plain:
                self._plain = {slot.text: self.lens.substitute({}, item)}
            weights = alternative.weights
            distance = None if weights is None else total_variation(head.attention, weights)
            if alternative.answer and distance is not None:
                distance = distance[head.row_index(alternative.answer["query"])][None]
            far = alternative.name == "far"
            rows.append(
                {
                    **slot.row,
                    "alternative": alternative.name,
                    "n_query": len(head.queries if alternative.answer else head.attention),
                    "n_key": len(head.keys),
                    "d_k": head.d_k,
                    "simplex_nullity": head.simplex_nullity,
                    "mean_total_variation": None if distance is None else float(distance.mean()),
                    "largest_total_variation": None if distance is None else float(distance.max()),
                    "distance_bound": bound(head, 0.0) if far else None,
                    "distance_bound_bfloat16": bound(head, ROUNDING["bfloat16"]) if far else None,
                    "output_error": None if weights is None else head.output_error(weights),
                    "logit_rank": logit_rank(head, weights),
                    "dimension": alternative.dimension,
                    "formula": alternative.formula,
                    **put_back(self._plain[slot.text], run),
                    **{name: alternative.answer.get(name) for name in ANSWER},
                    "note": alternative.note,
                }
            )
            kept |= alternative.tensors() if full else {}
        return Output(
            {"table": table_of(Alternatives.schema["table"], rows)},
            {slot.key(name): tensor for name, tensor in kept.items()},
            {slot.text: self.tokens(item, head)},
        )

    def _together(self, places: Sequence[Place]) -> Iterator[Output]:
        """Yield the tables of each head of one or of all, whose rows change together and keep what is asked for."""
        settings, text = self.settings, places[0].text
        item = self.items[text]
        asked = self.requested(item, places[0], settings.queries or LAST)
        if not asked:
            return
        rows = asked if item.length > _MAPS else None
        heads = [self.read(item, slot, rows) for slot in places]
        names = self.tokens(item, heads[0])
        layer = settings.outcome == "layer"
        if text not in self._answers and not layer:
            self._answers = {text: asked_answer(self.lens, item, settings, names, text)}
        answer = None if layer else self._answers[text]
        keys = names[sides(heads[0].kind, names).key]
        named = [key for words in settings.keys or () for key in named_places(keys, words, text)]
        tolerance, *_ = tolerances(settings.tolerance, settings.outcome, "float32")
        for query, aim in product(asked, settings.aim):
            kept = keep_answer(answer, heads, query, tolerance, named, aim)
            run = self.lens.substitute(in_row(heads, query, kept.weights), item)
            predicts = settings.outcome == "prediction"
            same = answer.same_top(run) if answer and predicts else None
            columns = kept.columns | {"same_top": same}
            for number, (slot, head, row) in enumerate(
                zip(places, heads, kept.weights, strict=True)
            ):
                weights = head.attention.clone()
                weights[head.row_index(query)] = row
                cells = {
                    name: value[number] if isinstance(value, list) else value
                    for name, value in columns.items()
                }
                name = f"{'layer' if layer else 'answer'}_{aim}_{query}"
                alternative = Found(name, weights, answer=cells)
                yield self._tables(slot, head, [(alternative, run)])

    def _alternatives(self, slot: Place, head: Head) -> Iterator[tuple[Found, ModelRun | None]]:
        """Yield each alternative with what the model gives when it is put back."""
        item, settings = self.items[slot.text], self.settings
        seed = settings.seed * 1_000_003 + 7919 * slot.text + 101 * head.layer + head.head
        generator = torch.Generator().manual_seed(seed % 2**63)
        for alternative in alternatives_of(head, settings.starts, generator):
            yield alternative, self._with_weights(head, item, alternative)
        if settings.realisable:
            layer = self.lens.layer(item, head.layer, head.kind)
            first = head.head - head.head % head.group
            group = [layer.head(first + number).on_processor() for number in range(head.group)]
            alternative = realisable(group, head.head - first, settings.distance, generator)
            yield alternative, self._with_weights(head, item, alternative)

    def _with_weights(self, head: Head, item: Item, alternative: Found) -> ModelRun | None:
        if alternative.weights is None:
            return None
        rows = range(len(head.queries)) if head.rows is None else head.rows
        changed = Rows(rows, alternative.weights)
        return self.lens.substitute({head.address: changed}, item)


alternatives = study_function(AlternativeStudy, "alternatives")


def bound(head: Head, tolerance: float) -> float:
    """Return the mean distance beyond which no alternative of a head lies, its output kept up to a tolerance."""
    certain = certain_mass(
        head.attention, head.projected, visible=head.visible, tolerance=tolerance
    )
    return float(1 - certain.mean())


_CHANGES = "hidden_change", "logits_change", "loss_change"


def put_back(plain: ModelRun, changed: ModelRun | None) -> Row:
    """Return what differs between a run with the model's own weights and another, by column; None where one lacks it.

    The largest change of a position's final hidden state, and of its logits, as a share of its length; and that of the
    loss.
    """
    row: Row = dict.fromkeys(_CHANGES)
    if changed is None:
        return row
    sequence = [*plain.hidden_states][-1]
    states = [run.hidden_states[sequence][-1] for run in (plain, changed)]
    row["hidden_change"] = _relative(*states)
    if plain.logits is not None and changed.logits is not None:
        row["logits_change"] = _relative(plain.logits, changed.logits)
    if plain.loss is not None and changed.loss is not None:
        row["loss_change"] = abs(changed.loss - plain.loss)
    return row


def _relative(before: Float[Tensor, "*rows d"], after: Float[Tensor, "*rows d"]) -> float:
    sizes, moves = (
        torch.linalg.vector_norm(tensor, dim=-1)
        for tensor in (wide(before), wide(after) - wide(before))
    )
    return float((moves / sizes.clamp_min(1e-12)).max())
