"""The map from the first layer's input to all hidden states is the model itself, in every family."""

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import seeded
from helpers.zoo import BUILDERS, build, example
from identilens.models import Lens
from identilens.models.linearise import HiddenMap

FAMILIES = sorted(BUILDERS)


def plain_states(lens, item, kind):
    """Hidden states as transformers reports them, without any of our hooks."""
    output = lens.run([item], output_hidden_states=True)
    if not lens.model.config.is_encoder_decoder:
        return output.hidden_states
    return output.encoder_hidden_states if kind == "encoder" else output.decoder_hidden_states


@pytest.mark.parametrize("family", FAMILIES)
def test_gives_the_model_s_own_hidden_states(family):
    lens = Lens(build(family))
    item = lens.read(example(family))[0]
    for source in ("encoder", "decoder")[: 1 + lens.model.config.is_encoder_decoder]:
        hidden = HiddenMap(lens, item, source)
        states = hidden(hidden.inputs)
        assert len(states) == len(hidden.outputs) >= 2
        for label, state in zip(hidden.outputs, states, strict=True):
            expected = plain_states(lens, item, label.kind)[label.layer][0]
            assert_close(state, expected, atol=5e-5, rtol=1e-4)
            assert len(hidden.tokens(label.kind)) == len(state)
        assert_close(hidden.inputs, plain_states(lens, item, source)[0][0])
        assert len(hidden.tokens()) == len(hidden.inputs)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_forward_and_reverse_derivatives_that_agree(family):
    lens = Lens(build(family))
    item = lens.read(example(family))[0]
    hidden = HiddenMap(lens, item)
    generator = seeded(3)
    tangents = torch.randn(2, *hidden.inputs.shape, generator=generator)
    with torch.no_grad():
        pushed = torch.vmap(lambda t: torch.func.jvp(hidden, (hidden.inputs,), (t,))[1])(tangents)
    states, pull = torch.func.vjp(hidden, hidden.inputs)
    cotangents = tuple(torch.randn(state.shape, generator=generator) for state in states)
    pulled = pull(cotangents)[0].detach()
    forward = sum((out * c).sum((1, 2)) for out, c in zip(pushed, cotangents, strict=True))
    assert_close(forward, (tangents * pulled).sum((1, 2)), rtol=2e-3, atol=2e-3)
