"""Models that join the texts of a batch are captured one text at a time, with the numbers of each alone."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from families.tiny import tiny_models
from helpers.heads import seeded
from helpers.zoo import _LLAMA, _random, ids
from identilens.errors import JoinedTextsError
from identilens.models import Lens
from identilens.models.families import has_positions_by_length


def joining(family):
    """Return a lens on a tiny model, and inputs that it joins in a batch."""
    lens = Lens(next(iter(tiny_models(family))))
    side = getattr(lens.model.config, "image_size", None)
    if side is None:
        return lens, [ids(9), ids(5)]
    return lens, {"pixel_values": torch.randn(2, 3, side, side, generator=seeded())}


@pytest.mark.parametrize("family", ["pixtral", "prophetnet"])
def test_each_text_is_as_it_is_alone(family):
    lens, inputs = joining(family)
    items = lens.read(inputs)
    with pytest.raises(JoinedTextsError, match="recording"):
        lens.prove_once(items)
    for together, item in zip(lens.capture(inputs, weights=True), items, strict=True):
        alone = next(lens.capture(item, weights=True))
        for one, other in zip(together.layers, alone.layers, strict=True):
            assert torch.equal(one.weights, other.weights)


SWITCH = 16
"""Length beyond which the models below have other positions."""
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [8.0] * 4,
}  # fmt: skip
LIMITS = {"max_position_embeddings": 64, "original_max_position_embeddings": SWITCH}


def phimoe():
    rope = {
        **LONG,
        "short_mscale": 1.0,
        "long_mscale": 2.0,
        "original_max_position_embeddings": SWITCH,
    }
    config = hf.PhimoeConfig(**{**_LLAMA, **LIMITS, "num_local_experts": 2}, rope_parameters=rope)
    return hf.PhimoeForCausalLM(config)


def layered():
    """LongRoPE in layers of one type only."""
    rope = {**LONG, "original_max_position_embeddings": SWITCH}
    kinds = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": rope,
    }
    sizes = {**_LLAMA, "max_position_embeddings": 64, "head_dim": 8, "sliding_window": 32}
    config = hf.Gemma3TextConfig(
        **sizes, rope_parameters=kinds, layer_types=["sliding_attention", "full_attention"]
    )
    return hf.Gemma3ForCausalLM(config)


SWITCHING = {
    "phi3": lambda: hf.Phi3ForCausalLM(
        hf.Phi3Config(**{**_LLAMA, **LIMITS}, rope_parameters={**LONG})
    ),
    "phimoe": phimoe,
    "layer types": layered,
}


def alone(lens, texts):
    return [next(lens.capture([text], weights=True)) for text in texts]


def assert_as_alone(lens, texts):
    for together, single in zip(lens.capture(texts, weights=True), alone(lens, texts), strict=True):
        for layer, other in zip(together.layers, single.layers, strict=True):
            assert_close(layer.weights, other.weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", sorted(SWITCHING))
def test_texts_of_a_model_with_positions_by_length_share_no_batch(family):
    torch.manual_seed(0)
    lens = Lens(_random(SWITCHING[family]()))
    texts = [ids(SWITCH - 7), ids(SWITCH + 1, 1), ids(SWITCH, 2), ids(SWITCH + 9, 3)]
    items = lens.read(texts)
    lens.sites(items[0])
    assert list(lens.batches(items, [0, 2, 1, 3], 8)) == [[0], [2], [1], [3]]
    assert_as_alone(lens, texts)
    with pytest.raises(JoinedTextsError, match="longest"):
        lens.run(items)


def test_positions_by_length_are_found_at_any_depth():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert has_positions_by_length(hf.LlamaConfig(**_LLAMA, rope_parameters=rope))
    nested = hf.LlavaConfig(
        text_config=hf.Phi3Config(**{**_LLAMA, **LIMITS}, rope_parameters={**LONG})
    )
    assert has_positions_by_length(nested)
    assert not has_positions_by_length(hf.BertConfig())
    assert not has_positions_by_length(hf.LlamaConfig(**_LLAMA))


def test_a_text_that_others_change_is_found_out_in_later_batches_too():
    """A model of no known kind, in which the longest text beyond 20 tokens changes the others."""
    torch.manual_seed(0)
    model = _random(hf.LlamaForCausalLM(hf.LlamaConfig(**_LLAMA)))
    rotary = model.model.rotary_emb
    rotary.register_forward_hook(
        lambda _, args, output: tuple(one * (1 + (one.shape[1] > 20)) for one in output)
    )
    lens = Lens(model)
    list(lens.capture([ids(9), ids(6)]))
    texts = [ids(9), ids(30, 1)]
    assert_as_alone(lens, texts)
    with pytest.raises(JoinedTextsError, match="failed"):
        lens.prove_once(lens.read(texts))
