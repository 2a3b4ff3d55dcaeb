"""Alternatives that other parameters give: of a head alone, or together with the heads that share its keys."""

from dataclasses import replace

import torch

from identilens.errors import IdentilensError, UnsupportedModelError
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.softmax_map import (
    SoftmaxMap,
    head_formula,
    realisable_dimension,
    softmax_map,
)
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.substitution import ModelRun
from identilens.models.tying import group_parameters
from identilens.studies.alternatives.search import Found

Made = tuple[Found, Found, ModelRun | None]
"""A realisable alternative, what the model computes with the parameters that give it, and its run with them."""


_NONE = Found("realisable", None)


def made(lens: Lens, item: Item, head: Head, distance: float, generator: torch.Generator) -> Made:
    """Return an alternative that other parameters of a head give, and what the model computes with them.

    The heads that share its keys take the new ones, too, and keep their outputs. If no parameters are theirs alone, the
    head's queries and keys move without any. The model is as before afterwards.
    """
    if not head.follows_logits:
        return _neither(
            "the weights are not softmax(s Q Kᵀ + bias): an attention sink or logits that are changed"
        )
    group, reason = None, ""
    try:
        group = group_parameters(lens, item, head)
        heads = group.softmax_map()
    except UnsupportedModelError as error:
        reason = str(error)
        if head.softcap is not None or not head.bias_fixed:
            return _neither(reason)
        heads = softmax_map(
            head.queries, head.keys, head.projected, head.scaling, head.visible, head.bias
        )
    known = counted(heads)
    if known.dimension == 0:
        return _neither(known.note, known)
    try:
        walked = realisable_alternative(heads, distance=distance, generator=generator)
    except IdentilensError as error:
        return _neither(str(error), known)
    notes = [known.note]
    if group is not None and head.group > 1:
        notes.insert(
            0,
            f"its keys serve {head.group} query heads: all of them take new ones, and each keeps its output",
        )
    if not walked.reached:
        notes.insert(
            0, f"stopped at {walked.distance:.3f} of {distance:g} after {walked.steps} steps"
        )
    vectors = point = walked.point
    if group is not None:
        vectors = group.vectors(point := group.solved(point))
    queries, keys = vectors.detach().view(-1, head.d_k).tensor_split([-len(head.keys)])
    note = "; ".join(filter(None, notes))
    weights, queries = walked.weights[heads.rows], queries[heads.rows]
    alternative = replace(known, weights=weights, queries=queries, keys=keys, note=note)
    if group is None:
        return alternative, Found("parameters", None, note=reason), None
    with group.changed(lens, point):
        weights = read_head(lens, item, *head.address).attention.cpu()
        run = lens.substitute({}, item)
    moved = group.moved(point)
    return (
        alternative,
        replace(known, name="parameters", weights=weights, moved=moved, note=""),
        run,
    )


def _neither(note: str, known: Found = _NONE) -> Made:
    none = replace(known, note=note)
    return none, replace(none, name="parameters"), None


def counted(heads: SoftmaxMap) -> Found:
    """Return the dimension of the realisable alternatives, that of the formula, and what a reader must know of them."""
    known = replace(_NONE, formula=head_formula(heads))
    try:
        found = realisable_dimension(heads)
    except IdentilensError as error:
        return replace(known, note=f"the dimension was not counted: {error}")
    notes = []
    if not found.dimension:
        notes.append("no realisable alternative lies near: the local dimension is 0")
    if not found.regular:
        notes.append(
            "the dimension is one to first order only: the queries and keys, or what makes them, are not generic"
        )
    return replace(known, dimension=found.dimension, note="; ".join(notes))
