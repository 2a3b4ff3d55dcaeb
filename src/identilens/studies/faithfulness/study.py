"""Faithfulness of explanations of attention maps, and their stability over weights with the same output."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from math import isnan, nan
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import IdentilensError
from identilens.measures.attention.entropy import maximum_entropy_alternative
from identilens.measures.attention.samplers import iterate_alternatives
from identilens.measures.attention.simplex import total_variation
from identilens.measures.explanations.agreement import rank_agreement
from identilens.measures.explanations.orders import (
    OrderBounds,
    normalised_area,
    order_bounds,
    removal_order,
    removal_sets,
)
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.models.tying import remade_head
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.faithfulness.inputs import FinalStates, captum
from identilens.studies.faithfulness.result import Faithfulness
from identilens.studies.faithfulness.sampling import (
    FaithfulnessSettings,
    Intervention,
    SampledMap,
    places_of,
    roundings,
    sampled_maps,
)
from identilens.studies.heads import TextStudy

Removal = Callable[[Bool[Tensor, "set part"]], Mapping[str, Float[Tensor, " set"]]]
"""Gives what removing sets of parts does to each outcome."""


def evaluate(
    removal: Removal,
    explained: Mapping[str, Float[Tensor, " part"]],
    settings: FaithfulnessSettings,
    generator: torch.Generator,
    floor: Mapping[str, float],
) -> Iterator[Row]:
    """Yield, for each outcome and explanation, its rank correlation with single effects, its area, and its place.

    The explanations' own areas extend the bounds of the search. Effects apart by the noise ``floor`` or less are equal.
    """
    scores = torch.stack(list(explained.values()))
    parts = scores.shape[1]
    sizes = [size for size in settings.groups if size < parts]
    singles = removal(torch.eye(parts, dtype=torch.bool))
    sets = removal_sets(removal_order(scores, generator), sizes)
    areas = {
        outcome: one.view(sets.shape[:2]).mean(-1)
        for outcome, one in removal(sets.flatten(0, 1)).items()
    }
    for outcome, own in areas.items():
        bounds = order_bounds(
            lambda sets, outcome=outcome: removal(sets)[outcome],
            singles[outcome],
            sizes,
            width=settings.beam,
            pool=settings.searched,
        )
        bounds = OrderBounds(
            min(bounds.lowest, float(own.min())), max(bounds.highest, float(own.max()))
        )
        noise, effects = floor[outcome], singles[outcome]
        placed = normalised_area(own, bounds, floor=noise)
        # Scores without an order follow nothing: 0. Effects without an order leave nothing to follow: no value.
        ordered = not bool(
            rank_agreement(torch.arange(parts).double(), effects, floor=noise).isnan()
        )
        correlations = rank_agreement(scores, effects.expand_as(scores), floor=noise).nan_to_num(
            0.0
        )
        for number, name in enumerate(explained):
            yield {
                "outcome": outcome,
                "explanation": name,
                "floor": noise,
                "above_floor": int((effects > noise).sum()),
                "correlation": float(correlations[number]) if ordered else None,
                "aopc": float(own[number]),
                "naopc": None if placed[number].isnan() else float(placed[number]),
            }


class RemovedKeys:
    """Effects of removing sets of keys of one row; every set is run once."""

    def __init__(self, drawn: SampledMap, row: int, intervention: Intervention) -> None:
        self._drawn, self._query, self._weights = drawn, drawn.queries[row], drawn.weights[row]
        self._intervention = intervention
        # The keys that the row sees; sets and scores are over these.
        self.keys = torch.nonzero(drawn.seen[row]).flatten()
        self._known: dict[bytes, dict[str, float]] = {}

    def effects(self, sets: Bool[Tensor, "set part"]) -> dict[str, Float[Tensor, " set"]]:
        """Return the changes of the hidden states, logits and loss by each set of parts."""
        names = [one.cpu().numpy().tobytes() for one in sets]
        new = {name: one for name, one in zip(names, sets, strict=True) if name not in self._known}
        if new:
            changes = [Rows([self._query], self._without(one)[None]) for one in new.values()]
            found = {
                name: values.tolist() for name, values in self._drawn.runs.effects(changes).items()
            }
            for at, name in enumerate(new):
                self._known[name] = {outcome: values[at] for outcome, values in found.items()}
        outcomes = self._known[names[0]]
        return {
            outcome: torch.tensor(
                [self._known[name][outcome] for name in names], dtype=torch.float64
            )
            for outcome in outcomes
        }

    def _without(self, removed: Bool[Tensor, " part"]) -> Float[Tensor, " key"]:
        weights = self._weights.clone()
        weights[self.keys[removed]] = 0.0
        left = weights.sum()
        return weights / left if self._intervention == "renormalise" and left > 0 else weights


def causal_rows(
    drawn: SampledMap,
    explained: dict[str, Float[Tensor, "row key"]],
    settings: FaithfulnessSettings,
) -> Iterator[Row]:
    """Yield the evaluation of each explanation of each row, for each intervention."""
    for row, query in enumerate(drawn.queries):
        for intervention in settings.interventions:
            removed = RemovedKeys(drawn, row, intervention)
            at = {
                **drawn.place,
                "query": query,
                "n_key": len(removed.keys),
                "intervention": intervention,
            }
            scores = {name: one[row, removed.keys].cpu() for name, one in explained.items()}
            evaluated = evaluate(removed.effects, scores, settings, drawn.generator, drawn.floor)
            yield from ({**at, **found} for found in evaluated)


Alternatives = dict[str, list[Float[Tensor, "row key"]]]


def alternatives_of(lens: Lens, item: Item, drawn: SampledMap, count: int) -> Alternatives:
    """Return other weights of the rows with the same output, by kind; none where the output allows no others.

    ``drawn``: evenly over all alternatives. ``parameters``: what the model itself computes when the head's W_Q and W_K
    are changed so that they give its maximum-entropy alternative, if it has such parameters.
    """
    head = drawn.head
    if not bool(drawn.free.any()):
        return {}
    options: dict[str, Any] = {"visible": drawn.visible, "generator": drawn.generator}
    sampled = iterate_alternatives(
        drawn.weights, head.projected, count, method="uniform", **options
    )
    alternatives = {"drawn": list(sampled)}
    parameters = entropy_parameters(drawn)
    if parameters is None:
        return alternatives
    try:
        with remade_head(lens, item, head, *parameters):
            computed = read_head(lens, item, *head.address).attention
    except IdentilensError:
        return alternatives
    return {**alternatives, "parameters": [computed[drawn.queries]]}


def entropy_parameters(
    drawn: SampledMap,
) -> tuple[Float[Tensor, "query d_k"], Float[Tensor, "key d_k"]] | None:
    """Return the queries and keys that give a head's maximum-entropy alternative; None if it cannot have them."""
    head = drawn.head
    if head.softcap is not None or not head.follows_logits or not head.bias_fixed or head.group > 1:
        return None
    try:
        wanted = maximum_entropy_alternative(
            head.attention, head.projected, visible=head.visible, bias=head.bias
        )
    except IdentilensError:
        return None
    room = head.d_k - wanted.needed_d_k
    return (
        None
        if room < 0
        else (pad(wanted.queries / head.scaling, (0, room)), pad(wanted.keys, (0, room)))
    )


def determinacy_rows(
    drawn: SampledMap, explained: dict[str, Float[Tensor, "row key"]], others: Alternatives
) -> Iterator[Row]:
    """Yield the mean rank agreement of each explanation of a row with itself over the row's alternatives.

    Rows that the output determines have none, and are left out. Explanations without an order have no agreement.
    """
    free = drawn.free.tolist()
    for kind, alternatives in others.items():
        distance = torch.stack([total_variation(drawn.weights, one) for one in alternatives]).mean(
            0
        )
        agreed: dict[str, list[Tensor]] = {}
        for other in map(drawn.explained, alternatives):
            for name, scores in other.items():
                agreed.setdefault(name, []).append(
                    self_agreement(explained[name], scores, drawn.seen)
                )
        for name, values in agreed.items():
            for row, value in enumerate(torch.stack(values).mean(0).tolist()):
                if not free[row]:
                    continue
                at = {
                    **drawn.place,
                    "query": drawn.queries[row],
                    "alternative": kind,
                    "explanation": name,
                }
                agreement = None if isnan(value) else value
                yield {**at, "total_variation": float(distance[row]), "agreement": agreement}


def self_agreement(
    own: Float[Tensor, "row part"], other: Float[Tensor, "row part"], seen: Bool[Tensor, "row part"]
) -> Float[Tensor, " row"]:
    """Return the rank agreement of an explanation of some rows with another one over the parts that are seen.

    NaN where ``own`` has no order, which nothing can confirm; 0 where only the other one has none.
    """
    agreement = rank_agreement(own, other, seen).nan_to_num(0.0)
    return agreement.masked_fill(rank_agreement(own, own, seen).isnan(), torch.nan)


def control_rows(drawn: SampledMap, others: Alternatives) -> Iterator[Row]:
    """Yield the model's change when each alternative is put back, beside the noise floor of the same map."""
    for kind, alternatives in others.items():
        found = drawn.runs.effects([Rows(drawn.queries, one) for one in alternatives])
        for outcome, values in found.items():
            at = {**drawn.place, "alternative": kind, "outcome": outcome}
            yield {**at, "change": float(values.max()), "floor": drawn.floor[outcome]}


def token_rows(
    lens: Lens, item: Item, text: int, maps: list[SampledMap], settings: FaithfulnessSettings
) -> Iterator[Row]:
    """Yield the evaluation of each explanation of some final states, drawn from the text.

    ``agreement`` is that of the explanation with itself when the first of the drawn heads whose W_Q and W_K can be
    changed has other ones, with which every hidden state of the model is the same; None if there is no such head, or
    the explanation has no order.
    """
    random = np.random.default_rng([settings.seed, text, 1])
    final = FinalStates(lens, item)
    tokens = len(final.inputs)
    positions = sorted(
        map(int, random.choice(tokens, min(settings.explained, tokens), replace=False))
    )
    seed = int(random.integers(2**31))
    explained = final.explained(positions, seed, settings.attribution)
    ends = torch.tensor([final.seen(position) for position in positions])
    seen_parts = torch.arange(tokens) < ends[:, None]
    agreed = {}
    for drawn in maps:
        parameters = entropy_parameters(drawn)
        if parameters is None:
            continue
        try:
            with remade_head(lens, item, drawn.head, *parameters):
                others = FinalStates(lens, item).explained(positions, seed, settings.attribution)
        except IdentilensError:
            continue
        for name, scores in explained.items():
            agreed[name] = self_agreement(scores, others[name], seen_parts.to(scores.device))
        break
    generator = torch.Generator().manual_seed(seed)
    explained["random"] = torch.rand(
        len(positions), tokens, generator=generator, dtype=torch.float64
    )
    # The largest move of each state when the entries of the inputs are rounded differently.
    factors = roundings(tuple(final.inputs.shape), final.inputs.dtype, seed).to(final.inputs)
    with torch.no_grad():
        moved = torch.stack([final(final.inputs * factor)[positions] for factor in factors])
    own = final.own[positions].double()
    changes = torch.linalg.vector_norm(moved.double() - own, dim=-1)
    floors = (changes / torch.linalg.vector_norm(own, dim=-1)).amax(0).tolist()
    for row, position in enumerate(positions):
        seen = final.seen(position)
        at = {"text": text, "position": position, "n_input": seen}
        scores = {name: one[row, :seen] for name, one in explained.items()}
        removal = partial(final.removed, position)
        floor = {"hidden": floors[row]}
        for found in (
            evaluate(removal, scores, settings, generator, floor)
            if seen > settings.groups[0]
            else ()
        ):
            agreement = (
                float(agreed[found["explanation"]][row]) if found["explanation"] in agreed else nan
            )
            yield {**at, **found, "agreement": None if isnan(agreement) else agreement}


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
        Faithfulness: Most faithful on these texts: ...
    """

    name = "faithfulness"
    settings_type = FaithfulnessSettings
    result_type = Faithfulness
    joins: ClassVar = "audit"

    def __init__(self, lens: Lens, texts: Any, settings: FaithfulnessSettings) -> None:
        super().__init__(lens, texts, settings)
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
