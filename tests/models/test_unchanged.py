"""A lens leaves a model as it found it: parameters, buffers, attributes, configurations and outputs."""

import copy

import pytest
import torch
import transformers as hf

from helpers.own_attention import FAMILIES as FOLLOWED
from helpers.own_attention import build_own, example_own
from helpers.zoo import BUILDERS, HYBRIDS, MORE, VOCAB, build, example, ids
from identilens.errors import UnsupportedModelError
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


@pytest.mark.parametrize("family", sorted({*BUILDERS, *MORE, *HYBRIDS, *FOLLOWED}))
def test_models_are_as_they_were(family):
    own = family not in {*BUILDERS, *MORE, *HYBRIDS}
    model = (build_own if own else build)(family).train()
    inputs = (example_own if own else example)(family)
    before, state = told(model), {name: one.clone() for name, one in model.state_dict().items()}
    buffers = {name: one.clone() for name, one in model.named_buffers()}
    lens = Lens(model)
    item = lens.read(inputs)[0]
    next(lens.capture(item, weights=True))
    lens.run([item])
    assert told(model) == before
    assert all(torch.equal(one, state[name]) for name, one in model.state_dict().items())
    assert all(torch.equal(one, buffers[name]) for name, one in model.named_buffers())


@pytest.mark.parametrize("kind", ["big_bird", "bigbird_pegasus"])
def test_sparse_blocks_are_refused_and_stay(kind):
    small = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    pegasus = {
        "vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
        "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
    }  # fmt: skip
    torch.manual_seed(0)
    model = (
        hf.BigBirdModel(hf.BigBirdConfig(**small, block_size=4))
        if kind == "big_bird"
        else hf.BigBirdPegasusModel(hf.BigBirdPegasusConfig(**pegasus, block_size=4))
    ).eval()
    before, lens = told(model), Lens(model)
    with pytest.raises(
        UnsupportedModelError, match=r'block-sparse.*attention_type="original_full"'
    ):
        next(lens.capture([ids(9)], weights=True))
    lens.run(lens.read([ids(9)]))
    assert told(model) == before
    full = copy.deepcopy(model)
    full.config.attention_type = "original_full"
    full = type(model)(full.config).eval()
    assert len(next(Lens(full).capture([ids(9)], weights=True)).layers) >= 2
