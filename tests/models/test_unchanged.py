"""A lens leaves a model as it found it: parameters, buffers, attributes, configurations and outputs."""

import copy

import pytest
import torch

from families.tiny import tiny_models
from families.trial import _runnable
from helpers.zoo import BUILDERS, HYBRIDS, MORE, build, example
from identilens.models import Lens


def told(model):
    """All that a model consists of; its caches of numbers are buffers and attributes."""
    fields = {
        name: {key: one for key, one in vars(module).items() if not key.startswith("_")}
        for name, module in model.named_modules()
    }
    values = {
        f"{name}.{key}": repr(one)
        for name, inner in fields.items()
        for key, one in inner.items()
        if not isinstance(one, torch.Tensor)
    }
    return values, copy.deepcopy(model.config.to_dict()), {*dict(model.named_modules())}


FOLLOWED = (
    "bloom", "deberta-v2", "falcon", "fsmt", "gpt_neo", "gptj", "layoutlmv3", "mpt", "roformer", "vitdet",
    "wavlm", "xlnet",
)  # fmt: skip


@pytest.mark.parametrize("family", sorted({*BUILDERS, *MORE, *HYBRIDS, *FOLLOWED}))
def test_models_are_as_they_were(family):
    model = next(tiny_models(family)) if family in FOLLOWED else build(family)
    inputs = next(iter(_runnable(model, []).values())) if family in FOLLOWED else example(family)
    model.train()
    before, state = told(model), {name: one.clone() for name, one in model.state_dict().items()}
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    lens = Lens(model)
    item = lens.read(inputs)[0]
    next(lens.capture(item, weights=True))
    lens.run([item])
    assert told(model) == before
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert all(torch.equal(one, buffers[name]) for name, one in model.named_buffers())
