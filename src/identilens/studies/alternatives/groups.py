"""Alternatives that other parameters give: of a head alone, or together with the heads that share its keys."""

from dataclasses import replace

import torch

from identilens.errors import IdentilensError, UnsupportedModelError
from identilens.measures.attention.realisable.alternative import realisable_alternative
from identilens.measures.attention.realisable.coordinates import MEMORY_LIMIT
from identilens.measures.attention.realisable.dimension import (
    head_formula,
    realisable_dimension,
)
from identilens.measures.attention.realisable.softmax_map import SoftmaxMap, softmax_map
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.reading import read_head
from identilens.models.substitution import ModelRun
from identilens.models.tying import group_parameters
from identilens.studies.alternatives.search import Found

Made = tuple[Found, Found, ModelRun | None]
"""A realisable alternative, what the model computes with the parameters that give it, and its run with them."""

Dimensions = tuple[int | None, int | None]
"""The local dimension of realisable alternatives and that of the formula, where they are known."""


def made(
    lens: Lens,
    item: Item,
    head: Head,
    distance: float,
    generator: torch.Generator,
    memory_limit: int = MEMORY_LIMIT,
) -> Made:
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
        vectors = (head.queries, head.keys, head.projected)
        heads = softmax_map(*vectors, head.scaling, head.visible, head.bias)
    known, notes = counted(heads, memory_limit)
    if known[0] == 0:
        return _neither("; ".join(notes), *known)
    try:
        walked = realisable_alternative(
            heads, distance=distance, generator=generator, memory_limit=memory_limit
        )
    except IdentilensError as error:
        return _neither(str(error), *known)
    if group is not None and head.group > 1:
        shared = f"its keys serve {head.group} query heads"
        notes.insert(0, f"{shared}: all of them take new ones, and each keeps its output")
    if not walked.reached:
        far = f"{walked.distance:.3f} of {distance:g}"
        notes.insert(0, f"stopped at {far} after {walked.steps} steps")
    point, vectors = walked.point, walked.point
    if group is not None:
        point = point if group.factors is None else group.solved(point)
        vectors = group.vectors(point)
    pairs = vectors.detach().view(-1, head.d_k).tensor_split([-len(head.keys)])
    pair = pairs[0][heads.rows], pairs[1]
    weights = walked.weights[heads.rows]
    alternative = Found("realisable", weights, *pair, *known, "; ".join(notes))
    if group is None:
        return alternative, Found("parameters", None, note=reason), None
    with group.changed(lens, point):
        weights = read_head(lens, item, *head.address).attention
        run = lens.substitute({}, item)
    moved = group.moved(point)
    return alternative, Found("parameters", weights, None, None, *known, moved=moved), run


def _neither(note: str, dimension: int | None = None, formula: int | None = None) -> Made:
    none = Found("realisable", None, dimension=dimension, formula=formula, note=note)
    return none, replace(none, name="parameters"), None


def counted(heads: SoftmaxMap, memory_limit: int) -> tuple[Dimensions, list[str]]:
    """Return the dimension of the realisable alternatives, that of the formula, and what a reader must know of them."""
    try:
        found = realisable_dimension(heads, memory_limit=memory_limit)
    except IdentilensError as error:
        return (None, head_formula(heads)), [f"the dimension was not counted: {error}"]
    notes = []
    if not found.dimension:
        notes.append("no realisable alternative lies near: the local dimension is 0")
    if not found.regular:
        notes.append(
            "the dimension is one to first order only: the queries and keys, or what makes them, are not generic"
        )
    return (found.dimension, found.formula), notes
