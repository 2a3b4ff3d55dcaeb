"""B, determinacy: how far each explanation is the same for other weights with the same output; and the control."""

from collections.abc import Iterator
from math import isnan
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import IdentilensError
from identilens.measures.attention.entropy import maximum_entropy_alternative
from identilens.measures.attention.samplers import iterate_alternatives
from identilens.measures.attention.simplex import total_variation
from identilens.measures.explanations.agreement import rank_agreement
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.projections import remade_projections
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.studies.faithfulness.drawing import DrawnMap

Alternatives = dict[str, list[Float[Tensor, "row key"]]]


def alternatives_of(lens: Lens, item: Item, drawn: DrawnMap, count: int) -> Alternatives:
    """Return other weights of the rows with the same output, by kind; none where the output allows no others.

    ``drawn``: evenly over all alternatives. ``parameters``: what the model itself computes when the head's W_Q and W_K
    are changed so that they give its maximum-entropy alternative, if it has such parameters.
    """
    head = drawn.head
    if not bool(drawn.free.any()):
        return {}
    options: dict[str, Any] = {"visible": drawn.visible, "generator": drawn.generator}
    found = list(iterate_alternatives(drawn.weights, head.projected, count, method="uniform", **options))
    made = _by_parameters(lens, item, drawn)
    return {"drawn": found, **({} if made is None else {"parameters": [made]})}


def entropy_parameters(drawn: DrawnMap) -> tuple[Float[Tensor, "query d_k"], Float[Tensor, "key d_k"]] | None:
    """Return the queries and keys that give a head's maximum-entropy alternative; None if it cannot have them."""
    head = drawn.head
    if head.softcap is not None or not head.follows_logits or not head.bias_fixed or head.group > 1:
        return None
    try:
        wanted = maximum_entropy_alternative(head.attention, head.projected, visible=head.visible, bias=head.bias)
    except IdentilensError:
        return None
    room = head.d_k - wanted.needed_d_k
    return None if room < 0 else (pad(wanted.queries / head.scaling, (0, room)), pad(wanted.keys, (0, room)))


def _by_parameters(lens: Lens, item: Item, drawn: DrawnMap) -> Float[Tensor, "row key"] | None:
    """Return the rows that the model computes with other W_Q and W_K; None if it cannot have them."""
    head, made = drawn.head, entropy_parameters(drawn)
    if made is None:
        return None
    try:
        with remade_projections(lens, item, head, *made):
            return read_head(lens, item, head.layer, head.head, head.kind).attention[drawn.queries]
    except IdentilensError:
        return None


def determinacy_rows(
    drawn: DrawnMap, explained: dict[str, Float[Tensor, "row key"]], others: Alternatives
) -> Iterator[dict[str, Any]]:
    """Yield the mean rank agreement of each explanation of a row with itself over the row's alternatives.

    Rows that the output determines have none, and are left out. Explanations without an order have no agreement.
    """
    free = drawn.free.tolist()
    for kind, alternatives in others.items():
        distance = torch.stack([total_variation(drawn.weights, one) for one in alternatives]).mean(0)
        agreed: dict[str, list[Tensor]] = {}
        for other in map(drawn.explained, alternatives):
            for name, scores in other.items():
                agreed.setdefault(name, []).append(self_agreement(explained[name], scores, drawn.seen))
        for name, values in agreed.items():
            for row, value in enumerate(torch.stack(values).mean(0).tolist()):
                if not free[row]:
                    continue
                at = {**drawn.place, "query": drawn.queries[row], "alternative": kind, "explanation": name}
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


def control_rows(drawn: DrawnMap, others: Alternatives) -> Iterator[dict[str, Any]]:
    """Yield what the model does when each alternative is put back, beside the noise floor of the same map."""
    for kind, alternatives in others.items():
        found = drawn.runs.effects([Rows(drawn.queries, one) for one in alternatives])
        for outcome, values in found.items():
            at = {**drawn.place, "alternative": kind, "outcome": outcome}
            yield {**at, "change": float(values.max()), "floor": drawn.floor[outcome]}
