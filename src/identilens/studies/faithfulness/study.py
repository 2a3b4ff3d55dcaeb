"""Faithfulness of explanations, tested by removing parts; their stability over weights with the same output."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import UnsupportedModelError
from identilens.linalg import FLOAT32_EPS
from identilens.measures.attention.samplers import sample_alternatives
from identilens.measures.attention.simplex import total_variation
from identilens.measures.explanations.rows import explain_rows, value_zeroing
from identilens.models.heads import Head
from identilens.models.lens import Lens
from identilens.models.map_runs import MapRuns
from identilens.models.substitution import Rows
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row
from identilens.studies.faithfulness.decisions import (
    decide,
    decision_scores,
    token_needs,
)
from identilens.studies.faithfulness.evaluation import (
    Effects,
    Sets,
    Table,
    agreement,
    evaluate,
)
from identilens.studies.faithfulness.result import Faithfulness
from identilens.studies.faithfulness.settings import FaithfulnessSettings, Intervention
from identilens.studies.heads import TextStudy, filled

Weights = Float[Tensor, "row key"]
"""A number of each key of some rows: weights, or scores."""

ROUNDINGS = 8
"""Roundings with which a noise floor is measured."""


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
            self.places(0)  # names a head that the model lacks
        else:
            decide(lens, self.items[0], settings.decision)

    def run(self, part: int) -> Output:
        """Return the tables of one text; with fewer than two tokens that can be removed it has no decision."""
        settings = self.settings
        tables: dict[str, list[Table]] = {name: [] for name in Faithfulness.schema}
        if settings.decision is None:
            for drawn in sampled_maps(self, part):
                explained = explanations(drawn, drawn.weights)
                others = sample_alternatives(
                    drawn.weights,
                    drawn.head.projected,
                    settings.alternatives,
                    method="uniform",
                    visible=drawn.visible,
                    generator=drawn.generator,
                )
                tables["table"] += row_scores(drawn, explained, settings)
                tables["determinacy"] += determinacy(drawn, explained, others)
        else:
            decision = decide(self.lens, self.items[part], settings.decision)
            if len(decision.removable) > 1:
                tables["table"] += decision_scores(decision, part, settings)
                tables["needed"].append({"text": part, **token_needs(decision)})
        return Output(filled(Faithfulness.schema, tables))


@dataclass(frozen=True)
class SampledMap:
    """One attention map with the rows that are tested, and the runs of its model with changes of it.

    Attributes:
        columns: Columns of a table that name the map.
        head: The head.
        queries: Positions of the rows.
        weights: Weights of the rows.
        visible: Mask of the keys that the rows see.
        floor: The noise floor of each outcome; see `noise_floor`.
        runs: Runs of the model with changes of the map.
        generator: Source of all further draws.
    """

    columns: Row
    head: Head
    queries: list[int]
    weights: Weights
    visible: Bool[Tensor, "row key"]
    floor: Mapping[str, float]
    runs: MapRuns
    generator: torch.Generator


def sample(random: np.random.Generator, values: Sequence[int], count: int) -> list[int]:
    """Return some of the values, or all if there are no more, in order."""
    return sorted(random.choice(values, min(count, len(values)), replace=False).tolist())


def sampled_maps(study: FaithfulnessStudy, text: int) -> Iterator[SampledMap]:
    """Yield the maps of a text that are tested, drawn with their rows from the seed and the text's number.

    Raises:
        InputError: If a head has an attention sink.
        UnsupportedModelError: If the model's attention cannot be captured faithfully.
    """
    places, settings, item = study.places(text), study.settings, study.items[text]
    random = np.random.default_rng([settings.seed, text])
    for number in sample(random, range(len(places)), settings.maps):
        head = study.read(item, places[number])
        visible = head.attention.isfinite() if head.visible is None else head.visible
        # Rows that see more keys than the smallest group removes.
        usable = (visible.sum(-1) > min(settings.groups)).nonzero()[:, 0].tolist()
        if not usable:
            continue
        queries = sample(random, usable, settings.rows)
        seed = int(random.integers(2**31))
        weights, visible = head.attention[queries], visible[queries]
        runs = MapRuns(study.lens, item, head)
        yield SampledMap(
            columns=places[number].row,
            head=head,
            queries=queries,
            weights=weights,
            visible=visible,
            floor=noise_floor(head, Rows(queries, weights), runs, seed),
            runs=runs,
            generator=torch.Generator().manual_seed(seed),
        )


def noise_floor(head: Head, rows: Rows, runs: MapRuns, seed: int) -> dict[str, float]:
    """Return the largest change of each outcome when the rows' outputs are rounded differently.

    Factors are 1 + ε u, u uniform on [−1, 1], ε that of the precision, at least float32's (that of softmaxes).
    """
    eps = max(torch.finfo(head.values.dtype).eps, FLOAT32_EPS)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand(ROUNDINGS, len(rows.weights), 1, generator=generator, dtype=torch.float64)
    factors = 1 + eps * (2 * drawn.to(rows.weights) - 1)
    effects = runs.effects([Rows(rows.queries, rows.weights * factor) for factor in factors])
    return {name: float(values.max()) for name, values in effects.items()}


def explanations(drawn: SampledMap, weights: Weights) -> dict[str, Weights]:
    """Return every explanation of these weights of the rows, the last one a random order."""
    parts = [
        explain_rows(weights[[row]], drawn.head.projected_for(query), drawn.visible[[row]])
        for row, query in enumerate(drawn.queries)
    ]
    scores = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    # Only the rows' outputs are read, so that a value of zero is a weight of zero.
    zeroed = weights.repeat(weights.shape[1] + 1, 1, 1)
    zeroed[1:].diagonal(dim1=0, dim2=2).zero_()
    with suppress(UnsupportedModelError):  # a model without a list of layers
        changes = [Rows(drawn.queries, changed) for changed in zeroed]
        outputs = drawn.runs.layer_outputs(changes)[:, drawn.queries]
        # The root has the same order, and is in proportion to the change: small scores do not count as ties.
        scores["value_zeroing"] = value_zeroing(outputs[0], outputs[1:]).sqrt().to(weights)
    random = torch.rand(weights.shape, generator=drawn.generator, dtype=torch.float64)
    return {**scores, "random": random.to(weights) * drawn.visible}


def removed(drawn: SampledMap, row: int, intervention: Intervention, sets: Sets) -> Effects:
    """Return the effects of removing sets of the keys that a row sees."""
    weights = drawn.weights[row].repeat(len(sets), 1)
    weights[:, drawn.visible[row]] *= ~sets.to(weights.device)
    if intervention == "renormalise":
        # Where nothing is left, 0 / 0 is nothing.
        weights = (weights / weights.sum(-1, keepdim=True)).nan_to_num()
    rows = [Rows([drawn.queries[row]], changed[None]) for changed in weights]
    return torch.stack([effect.cpu().double() for effect in drawn.runs.effects(rows).values()], -1)


def row_scores(
    drawn: SampledMap, explained: Mapping[str, Weights], settings: FaithfulnessSettings
) -> Iterator[Table]:
    """Yield the evaluation of the explanations of each row, for each intervention."""
    for row, query in enumerate(drawn.queries):
        visible = drawn.visible[row]
        scores = {name: weights[row, visible].cpu() for name, weights in explained.items()}
        sizes = [size for size in sorted({*settings.groups}) if size < visible.sum()]
        for intervention in settings.interventions:
            removal = partial(removed, drawn, row, intervention)
            for table in evaluate(removal, scores, drawn.floor, sizes, settings, drawn.generator):
                yield {**drawn.columns, "query": query, "intervention": intervention, **table}


def determinacy(
    drawn: SampledMap,
    explained: Mapping[str, Weights],
    others: Float[Tensor, "count row key"],
) -> Iterator[Table]:
    """Yield the mean rank agreement of each explanation of a row with itself over alternatives.

    Rows that the output determines are left out. An explanation without an order, which nothing can confirm, has no
    agreement; an alternative without one agrees by 0.
    """
    spaces = drawn.head.projected.simplex_spaces(len(drawn.queries), drawn.visible)
    free = [row for row, space in enumerate(spaces) if space.nullity > 0]
    if not free:
        return
    again = [explanations(drawn, weights) for weights in others]
    distance = total_variation(drawn.weights, others).mean(0)[free].cpu()
    for name, scores in explained.items():
        agreed = [agreement(other[name], scores, drawn.visible) for other in again]
        yield {
            **drawn.columns,
            "query": [drawn.queries[row] for row in free],
            "explanation": name,
            "total_variation": distance,
            "agreement": torch.stack(agreed).mean(0)[free].cpu(),
        }


faithfulness = study_function(FaithfulnessStudy, "faithfulness")
