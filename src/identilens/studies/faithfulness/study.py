"""Faithfulness of explanations, tested by removing parts; their stability over weights with the same output."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import ceil, nan
from typing import Any

import numpy as np
import polars as pl
import torch
from torch.nn.functional import pad

from identilens.errors import IdentilensError
from identilens.measures.attention.entropy import maximum_entropy_alternative
from identilens.measures.attention.samplers import iterate_alternatives
from identilens.measures.attention.simplex import total_variation
from identilens.measures.explanations.agreement import rank_agreement
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.models.tying import group_parameters
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.faithfulness.decisions import Decision, answers
from identilens.studies.faithfulness.evaluation import evaluate, once
from identilens.studies.faithfulness.result import Faithfulness
from identilens.studies.faithfulness.sampling import SampledMap, Weights, sampled_maps
from identilens.studies.faithfulness.settings import FaithfulnessSettings
from identilens.studies.heads import TextStudy

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the tokens that are removed or kept (DeYoung et al. 2020, section 4.2)."""


def row_scores(
    drawn: SampledMap, explained: Mapping[str, Weights], settings: FaithfulnessSettings
) -> Iterator[Row]:
    """Yield the evaluation of each explanation of each row, for each intervention."""
    for row, query in enumerate(drawn.queries):
        scores = {name: one[row, drawn.seen[row]].cpu() for name, one in explained.items()}
        at = {**drawn.place, "query": query}
        for intervention in settings.interventions:
            removal = once(partial(drawn.removed, row, intervention))
            for found in evaluate(removal, scores, drawn.floor, settings, drawn.generator):
                yield {**at, "intervention": intervention, **found}


def alternatives_of(
    lens: Lens, item: Item, drawn: SampledMap, count: int
) -> dict[str, list[Weights]]:
    """Return other weights of the rows with the same output, by kind; none where the output allows no others.

    ``drawn``: evenly over all alternatives. ``parameters``: what the model itself computes when the head's W_Q and W_K
    are changed so that they give its maximum-entropy alternative, if it has such parameters.
    """
    head = drawn.head
    if not drawn.free:
        return {}
    options: Any = {"visible": drawn.seen, "generator": drawn.generator, "method": "uniform"}
    found = {"drawn": list(iterate_alternatives(drawn.weights, head.projected, count, **options))}
    if head.softcap is not None or not head.follows_logits or not head.bias_fixed or head.group > 1:
        return found
    with suppress(IdentilensError):
        options = {"visible": head.visible, "bias": head.bias}
        wanted = maximum_entropy_alternative(head.attention, head.projected, **options)
        room = (0, head.d_k - wanted.needed_d_k)
        if room[1] >= 0:
            queries, keys = pad(wanted.queries / head.scaling, room), pad(wanted.keys, room)
            group = group_parameters(lens, item, head)
            vectors = torch.cat([queries.flatten(), keys.flatten()])
            with group.changed(lens, group.solved(vectors)):
                computed = read_head(lens, item, *head.address).attention
            found["parameters"] = [computed[drawn.queries]]
    return found


def determinacy_rows(
    drawn: SampledMap, explained: Mapping[str, Weights], kind: str, others: list[Weights]
) -> Iterator[Row]:
    """Yield the mean rank agreement of each explanation of a row with itself over alternatives of one kind.

    Rows that the output determines are left out. An explanation without an order, which nothing can confirm, has no
    agreement; an alternative without one agrees by 0.
    """
    again = [drawn.explained(weights) for weights in others]
    distance = torch.stack([total_variation(drawn.weights, one) for one in others]).mean(0)
    for name, scores in explained.items():
        agreed = [rank_agreement(scores, other[name], drawn.seen) for other in again]
        agreement = torch.stack(agreed).nan_to_num(0.0).mean(0)
        agreement[rank_agreement(scores, scores, drawn.seen).isnan()] = nan
        for row in drawn.free:
            yield {
                **drawn.place,
                "query": drawn.queries[row],
                "alternative": kind,
                "explanation": name,
                "total_variation": float(distance[row]),
                "agreement": float(agreement[row]),
            }


def control_rows(drawn: SampledMap, kind: str, others: list[Weights]) -> Iterator[Row]:
    """Yield the model's change when alternatives are put back, beside the noise floor of the same map."""
    found = drawn.runs.effects([Rows(drawn.queries, one) for one in others])
    at = {**drawn.place, "alternative": kind}
    for outcome, values in found.items():
        floor = drawn.floor[outcome]
        yield {**at, "outcome": outcome, "change": float(values.max()), "floor": floor}


def decision_scores(decision: Decision, text: int, settings: FaithfulnessSettings) -> Iterator[Row]:
    """Yield the evaluation of each explanation of a decision: its first tokens taken out, or kept alone."""
    seed = int(np.random.default_rng([settings.seed, text]).integers(2**31))
    explained = decision.explained(seed, settings.attribution)
    parts = len(decision.removable)
    # At least one token is removed, and at least one stays.
    sizes = [min(ceil(share * parts), parts - 1) for share in SHARES]
    without = lambda sets: -decision.alone(~sets)  # noqa: E731
    for intervention, removal in (("without", without), ("alone", decision.alone)):
        # Both have the same random orders.
        generator = torch.Generator().manual_seed(seed)
        explained["random"] = torch.rand(parts, generator=generator, dtype=torch.float64)
        common = {"probability": 0.0}, settings, generator, sizes
        for found in evaluate(removal, explained, *common):
            yield {"intervention": intervention, **found}


class FaithfulnessStudy(TextStudy[FaithfulnessSettings, Faithfulness]):
    """Test explanations of attention rows or of decisions: do their orders follow what removing parts does.

    From each text some maps and rows are drawn. Faithful: keys are removed in each explanation's order, and one by one;
    the change of the final hidden states, logits and loss gives a rank correlation and the normalised area over the
    perturbation curve. Stable: the agreement of the explanation with itself over drawn weights with the same output. As
    a control, each of these alternatives is put into the model, which must change nothing beyond a measured noise
    floor. With ``decision``, tokens of the text are taken out instead, one by one and in each explanation's order, or
    are kept alone, and the probability of the decision is taken again (comprehensiveness and sufficiency, DeYoung et
    al. 2020). Every order is tested against random orders. Definitions: docs/faithfulness.md.

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
        if settings.decision is not None:
            self._answers = answers(lens, self.items[0], settings.decision)

    def run(self, part: int) -> Output:
        """Return the tables of one text; with fewer than two tokens that can be removed it has no decision."""
        lens, item, settings = self.lens, self.items[part], self.settings
        tables: dict[str, list[Row]] = {name: [] for name in Faithfulness.schema}
        maps = []
        if settings.decision is None:
            maps = sampled_maps(lens, item, part, settings)
        elif len((decision := Decision(lens, item, *self._answers)).removable) > 1:
            tables["table"] += decision_scores(decision, part, settings)
            tables["needed"] += decision.needed()
        for drawn in maps:
            explained = drawn.explained(drawn.weights)
            alternatives = alternatives_of(lens, item, drawn, settings.alternatives)
            tables["table"] += row_scores(drawn, explained, settings)
            for kind, others in alternatives.items():
                tables["determinacy"] += determinacy_rows(drawn, explained, kind, others)
                tables["controls"] += control_rows(drawn, kind, others)
        return Output(
            {
                name: pl.DataFrame(
                    [{"text": part, **row} for row in tables[name]], schema=pl.Schema(columns)
                ).fill_nan(None)
                for name, columns in Faithfulness.schema.items()
            }
        )


faithfulness = study_function(FaithfulnessStudy, "faithfulness")
