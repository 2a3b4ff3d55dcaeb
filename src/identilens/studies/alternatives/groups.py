"""Alternatives that other parameters give: of a head alone, or together with the heads that share its keys."""

from dataclasses import replace

import torch

from identilens.errors import IdentilensError, InputError, UnsupportedModelError
from identilens.measures.attention.realisable.dimension import MEMORY_LIMIT, RealisableDimension
from identilens.measures.attention.realisable.tied import tied_alternative, tied_dimension
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.projections import query_key_projections
from identilens.models.substitution import ModelRun
from identilens.models.tying import group_parameters
from identilens.studies.alternatives.search import (
    Found,
    by_parameters,
    computed,
    dimension_notes,
    none_near,
    or_note,
    realisable,
)

Made = tuple[Found, Found, ModelRun | None]
"""A realisable alternative, what the model computes with the parameters that give it, and its run with them."""


def made(
    lens: Lens,
    item: Item,
    head: Head,
    distance: float,
    generator: torch.Generator,
    memory_limit: int = MEMORY_LIMIT,
) -> Made:
    """Return an alternative that other queries and keys of a head give, and the model with parameters that make them.

    If a linear map of its own makes the head's queries, and another its keys, they move freely, and the maps follow.
    Other heads (rotary positions, shared keys, latent vectors, norms, soft caps) move with the parameters that only
    the heads sharing their keys use, and all of these heads keep their outputs. The model is as before afterwards.
    """
    if not _alone(lens, item, head):
        return _together(lens, item, head, distance, generator, memory_limit)
    alternative = or_note("realisable", lambda: realisable(head, distance, generator))
    parameters, run = by_parameters(lens, item, head, alternative)
    if parameters.weights is not None or alternative.weights is None:
        return alternative, parameters, run
    # The text's embeddings depend on each other, so that no map makes these queries and keys.
    return alternative, *_together(lens, item, head, distance, generator, memory_limit)[1:]


def _alone(lens: Lens, item: Item, head: Head) -> bool:
    """Whether the head's queries and keys can move without parameters, or cannot move at all."""
    if not head.follows_logits:
        return True
    if head.softcap is not None or not head.bias_fixed:
        return False
    try:
        query_key_projections(lens, item, head)
    except IdentilensError:
        return False
    return True


def _together(
    lens: Lens,
    item: Item,
    head: Head,
    distance: float,
    generator: torch.Generator,
    memory_limit: int,
) -> Made:
    try:
        group = group_parameters(lens, item, head)
    except UnsupportedModelError as error:
        # The head's queries and keys may have alternatives that no parameters of its own make.
        alternative = or_note("realisable", lambda: realisable(head, distance, generator))
        return alternative, Found("parameters", None, note=str(error)), None
    tied = group.tied()
    try:
        counted = tied_dimension(tied, formula=group.formula(tied), memory_limit=memory_limit)
    except InputError:  # it takes too much memory
        counted = None
    if counted is not None and not counted.dimension:
        return _neither(none_near(counted), 0, counted.formula)
    try:
        walked = tied_alternative(
            tied, distance=distance, generator=generator, memory_limit=memory_limit
        )
    except IdentilensError as error:
        return _neither(str(error), *_known(counted))
    with group.changed(lens, walked.parameters):
        weights, run = computed(lens, item, head)
    notes = []
    if not walked.reached:
        notes.append(f"stopped at {walked.distance:.3f} of {distance:g} after {walked.steps} steps")
    if head.group > 1:
        notes.append(
            f"its keys serve {head.group} query heads: all of them take new ones, and each keeps its output"
        )
    if counted is None:
        notes.append("the dimension was not counted: that takes too much memory")
    else:
        notes += dimension_notes(counted)
    pair, known = group.queries_and_keys(walked.parameters), _known(counted)
    alternative = Found("realisable", walked.weights[tied.rows], *pair, *known, "; ".join(notes))
    return (
        alternative,
        Found("parameters", weights, None, None, *known, moved=group.moved(walked.parameters)),
        run,
    )


def _neither(note: str, dimension: int | None, formula: int | None) -> Made:
    none = Found("realisable", None, dimension=dimension, formula=formula, note=note)
    return none, replace(none, name="parameters"), None


def _known(counted: RealisableDimension | None) -> tuple[int | None, int | None]:
    return (None, None) if counted is None else (counted.dimension, counted.formula)
