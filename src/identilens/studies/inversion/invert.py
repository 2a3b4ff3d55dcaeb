"""Reading a text from what is stored of it, with margins."""

from collections.abc import Sequence
from itertools import accumulate
from operator import and_

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg.checks import check_finite
from identilens.measures.tokens.margins import Nearest
from identilens.models.candidates import Candidates, Stored
from identilens.models.lens import Lens
from identilens.studies.inversion.result import Inverted

_KEPT = 32
"""Candidates whose states are kept: those outside are far from all of them."""

_TRIED = 6
"""Tokens with which the model's layers and cache are tried."""


def invert(
    lens: Lens,
    states: Float[Tensor, "position d"],
    *,
    layer: int,
    stored: Stored = "states",
    beginning: Sequence[int] = (),
) -> Inverted:
    """Return the text that is read from stored states of a causal model, token by token.

    Every token of the vocabulary is tried after what was read so far, and the nearest is taken. With d the distance of
    the state to it and m half the distance from it to every other candidate, the token is *certified* if d < m, and so
    was every one before, less the noise of the forward pass, which is measured. Then no error below the margins can
    have led here from another text: if the state of another token v was stored with an error e,
    2 m ≤ ‖F(v) − F(found)‖ ≤ e + d, so e > m. Cost: one run of the vocabulary for each position.

    Args:
        lens: A causal model.
        states: Its hidden states at one layer, of a text from its first token on; of a cache, the keys of all heads
            and then the values, [position, 2 · heads · d_head].
        layer: The layer: 0 (embedding output) to L; of a cache, 0 to L − 1.
        stored: Whether states or a cache were stored.
        beginning: Token ids that are known, whose states come before these.

    Raises:
        InputError: For states of another shape, an encoder, or a layer that the model lacks.
        NumericalError: For states with NaN or infinite entries.
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
    check_finite(states=states)
    tried = lens.read([[0] * _TRIED])[0]
    candidates = Candidates(lens, tried, (layer,), stored=stored)
    width = candidates.read(tried.tensors["input_ids"][None])[0].shape[2]
    if not candidates.causal or not len(states) or states.shape[1:] != (width,):
        raise InputError(
            f"expected states of one text and one layer, [position, {width}], of a causal model; got "
            f"{tuple(states.shape)} of {type(lens.body).__name__}. Pass captured.hidden_states['encoder'][layer] of "
            "this model; for keys and values, stored='cache'."
        )
    ids = torch.tensor(list(beginning), dtype=torch.long)
    met = []
    for state in states.detach().cpu().double():
        nearest = Nearest(state[None], _KEPT)
        for tokens, (batch,) in candidates.after(ids):
            nearest.add(tokens, batch)
        met.append((float(nearest.distances[0, 0]), nearest.separation(), nearest.states[0]))
        ids = torch.cat([ids, nearest.ids[0, :1]])
    distances, margins, decoded = zip(*met, strict=True)
    # The text that was found runs once more, without a cache: what differs is noise of the forward pass.
    again = candidates.read(ids[None])[0][0, -len(met) :].cpu().double()
    moved = float((again - torch.stack(decoded)).norm(dim=1).max())
    below = [distance + moved < margin for distance, margin in zip(distances, margins, strict=True)]
    text = tuple(ids[-len(met) :].tolist())
    return Inverted(
        ids=text,
        distances=distances,
        margins=margins,
        certified=tuple(accumulate(below, and_)),
        forward_noise=moved,
        tokens=lens.reader.names(text),
    )
