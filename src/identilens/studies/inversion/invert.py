"""Reading a text from what is stored of it, with margins."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from operator import and_

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.measures.tokens.margins import Nearest
from identilens.models.candidates import BUDGET, Candidates, Stored
from identilens.models.lens import Lens
from identilens.runs.settings import Size, coerce
from identilens.studies.inversion.result import Inverted

_KEPT = 32
"""Candidates whose states are kept: those outside are far from all of them."""

_TRIED = 6
"""Tokens with which the model's layers and cache are tried."""


_SUBSTITUTES = 128
"""Tokens tried at a position of an encoder's text by their states alone, and as many by their embeddings."""

_SWEEPS = 10
"""Largest number of times that each token of an encoder's text is tried again."""


def invert(
    lens: Lens,
    states: Float[Tensor, "position d"],
    *,
    layer: int,
    stored: Stored = "states",
    beginning: Sequence[int] = (),
    within: float = 0.0,
    memory_budget: int | str = BUDGET,
) -> Inverted:
    """Return the text that is read from stored states: of a causal model token by token, of an encoder by search.

    Of a causal model every token of the vocabulary is tried after what was read so far, and the nearest is taken. With
    d the distance of the state to it and m half the distance from it to every other candidate, the token is *certified*
    if d < m, and so was every one before, less the noise of the forward pass, which is measured. Then no error
    below the margins can have led here from another text: if the state of another token v was stored with an error e,
    2 m ≤ ‖F(v) − F(found)‖ ≤ e + d, so e > m. Cost: one run of the vocabulary for each position.

    Of an encoder, tokens are replaced one at a time by those of which the state alone or the embedding is near, as long
    as all states together come nearer. *Certified* then says only that the found text has these states within
    ``within``: others may have them, too. For short texts; the search may end elsewhere.

    Args:
        lens: A causal model or an encoder.
        states: Its hidden states at one layer, of a text from its first token on; of a cache, the keys of all heads
            and then the values, [position, 2 · heads · d_head].
        layer: The layer: 0 (embedding output) to L; of a cache, 0 to L − 1.
        stored: Whether states or a cache were stored.
        beginning: Token ids that are known, whose states come before these; of a causal model.
        within: Of an encoder, how far the states of the whole text may be moved by noise.
        memory_budget: Largest size of a batch of candidates.

    Raises:
        InputError: For states of another shape or with NaN, or a layer that the model lacks.
        UnsupportedModelError: For an encoder-decoder.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> [captured] = lens.capture("Snow fell.", hidden_states=True)
        >>> states = captured.hidden_states["encoder"][2].to(torch.bfloat16)
        >>> found = idl.invert(lens, states, layer=2)
        >>> found.tokens[1:], all(found.certified)
        (('S', 'now', ' f', 'ell', '.'), True)
    """
    if not isinstance(states, Tensor) or states.ndim != 2 or not states.is_floating_point():
        shape = tuple(states.shape) if isinstance(states, Tensor) else type(states).__name__
        raise InputError(
            f"expected states of one text and one layer, [position, d] in floating point; got {shape}. Pass "
            "captured.hidden_states['encoder'][layer]."
        )
    if not len(states) or not bool(states.isfinite().all()):
        raise InputError(
            "the states are empty, or have NaN or infinite entries; remove these positions from the end."
        )
    tried = lens.read([[0] * _TRIED])[0]
    budget = coerce("memory_budget", Size, memory_budget)
    candidates = Candidates(lens, tried, (layer,), stored=stored, budget=budget)
    width = candidates.read(tried.tensors["input_ids"][None])[0].shape[2]
    if states.shape[1] != width:
        raise InputError(
            f"layer {layer} stores {width} numbers for a token; got {states.shape[1]}. Pass stored='cache' for keys "
            "and values, and the states of this model."
        )
    known = torch.tensor(list(beginning), dtype=torch.long)
    given = states.detach().double().cpu()
    if candidates.causal:
        found = _decoded(candidates, given, known)
    else:
        both = Candidates(lens, tried, (layer, 0), budget=budget)
        found = _fitted(both, given, within)
    return replace(found, tokens=lens.reader.names(found.ids))


def _decoded(candidates: Candidates, states: Tensor, ids: Tensor) -> Inverted:
    """Return the text whose tokens are the nearest one by one, after some that are known."""
    known = len(ids)
    distances, margins, met = [], [], []
    for state in states:
        nearest = Nearest(state[None], _KEPT)
        for tokens, (batch,) in candidates.after(ids):
            nearest.add(tokens, batch)
        distances.append(float(nearest.distances[0, 0]))
        margins.append(nearest.separation())
        met.append(nearest.states[0])
        ids = torch.cat([ids, nearest.ids[0, :1]])
    # The text that was found runs once more, without a cache: what differs is noise of the forward pass.
    again = candidates.read(ids[None])[0][0, known:].double()
    moved = float((again - torch.stack(met)).norm(dim=1).max())
    below = [distance + moved < margin for distance, margin in zip(distances, margins, strict=True)]
    return Inverted(
        ids=tuple(ids[known:].tolist()),
        distances=tuple(distances),
        margins=tuple(margins),
        certified=tuple(accumulate(below, and_)),
        forward_noise=moved,
    )


def _fitted(candidates: Candidates, states: Tensor, within: float) -> Inverted:
    """Return the text of which no other token, among those that are near alone, brings all states nearer."""
    most = min(_SUBSTITUTES, candidates.vocabulary)
    alone = Nearest(states, most), Nearest(states, most)
    for tokens, batches in candidates.batches(torch.arange(candidates.vocabulary)[:, None]):
        for nearest, batch in zip(alone, batches, strict=True):
            nearest.add(tokens, batch)
    near = torch.cat([nearest.ids for nearest in alone], 1)
    ids = near[:, 0]
    for _ in range(_SWEEPS):
        before = ids
        for position, others in enumerate(near):
            texts = ids.repeat(len(others) + 1, 1)
            texts[1:, position] = others
            nearest = Nearest(states.flatten()[None])
            for numbers, (batch, _) in candidates.batches(texts):
                nearest.add(numbers, batch)
            ids = texts[nearest.ids[0, 0]]
        if torch.equal(ids, before):
            break
    apart = (candidates.read(ids[None])[0][0].double() - states).norm(dim=1)
    return Inverted(
        ids=tuple(ids.tolist()),
        distances=tuple(apart.tolist()),
        margins=(),
        certified=(float(apart.norm()) <= within,) * len(ids),
        forward_noise=0.0,
    )
