"""Capture leaves every family's outputs alone, and its heads add up to the attention block's output."""

import copy

import pytest
import torch
from torch.testing import assert_close

from families.tiny import tiny_models
from families.trial import _runnable
from helpers.zoo import ALONE, BUILDERS, HYBRIDS, MORE, build, example, ids
from identilens.models import Lens
from identilens.models.capture import Collector
from identilens.models.inputs import collate

FAMILIES = sorted(BUILDERS | MORE)


def tensors(output, prefix=""):
    """Every floating point tensor of a model output, by name."""
    found = {}
    for name, value in output.items():
        values = value if isinstance(value, tuple) else (value,)
        for index, tensor in enumerate(values):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                found[f"{name}.{index}"] = tensor
    return found


def run_recording_blocks(lens, items, handler=None):
    """Model output, and what each attention block's output projection gives, in call order."""
    seen = []
    hooks = [
        module.register_forward_hook(lambda module, args, out: seen.append(out.detach().clone()))
        for module in {site.projection for site in lens.sites(items[0])}
    ]
    output = lens.run(items, handler, output_hidden_states=True)
    for hook in hooks:
        hook.remove()
    return tensors(output), seen


def own_positions(items, tensor):
    """Mask of a tensor (text, position, ...) that leaves padding out; its content is nobody's business."""
    lengths = torch.tensor([item.length or tensor.shape[1] for item in items])
    if tensor.shape[1] != int(lengths.max()):
        return torch.ones(tensor.shape[:2], dtype=torch.bool)
    return torch.arange(tensor.shape[1]) < lengths[:, None]


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", FAMILIES)
def test_outputs_unchanged_and_heads_add_up(family, implementation):
    model = build(family)
    if implementation == "sdpa" and (not model._supports_sdpa or family == "gemma2"):
        pytest.skip(f"{family} has no fused attention")
    model.set_attn_implementation(implementation)
    lens = Lens(model)
    items = lens.read(example(family))[: 1 if family in ALONE else None]
    lens.prove_once(items)
    plain, blocks = run_recording_blocks(lens, items)
    for weights in (False, True):
        collector = Collector(lens.sites(items[0]), items, weights)
        captured, again = run_recording_blocks(lens, items, collector)
        assert model.config._attn_implementation == implementation
        assert captured.keys() == plain.keys()
        assert len(plain) > 2
        for name, tensor in plain.items():
            own = own_positions(items, tensor)
            assert_close(
                captured[name][own], tensor[own], atol=5e-5, rtol=1e-4, msg=f"{name} changed"
            )
        assert len(blocks) == len(again) == len(collector.layers[0])
        for index, layers in enumerate(collector.layers):
            for layer, block in zip(layers, blocks, strict=True):
                total = torch.einsum("hnv,hvd->nd", layer.head_output, layer.site.output_projection)
                bias = layer.site.projection.bias
                total = total if bias is None else total + bias
                assert_close(total, block[index, : len(total)], atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f not in ("vit", "whisper")])
@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_on_either_side_equals_each_text_alone(family, side):
    lens = Lens(build(family))
    texts = [ids(9, 3), ids(5, 4)]
    width = 12
    batch = {
        "input_ids": torch.zeros(2, width, dtype=torch.long),
        "attention_mask": torch.zeros(2, width).long(),
    }
    for row, text in enumerate(texts):
        where = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        batch["input_ids"][row, where] = torch.tensor(text)
        batch["attention_mask"][row, where] = 1
    if lens.model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = torch.tensor([[2, *ids(4, 5)], [2, *ids(4, 6)]])
    for row, together in enumerate(lens.capture(batch, weights=True)):
        alone_batch = {name: value[row : row + 1] for name, value in batch.items()}
        alone = next(lens.capture(alone_batch, weights=True))
        for one, other in zip(together.heads, alone.heads, strict=True):
            assert one.values.shape == other.values.shape
            assert_close(one.weights, other.weights, atol=2e-5, rtol=1e-4)
            assert_close(one.head_output, other.head_output, atol=5e-5, rtol=1e-4)


def maps(output):
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return {name: output[name] for name in names if output.get(name)}


@pytest.mark.parametrize("family", sorted(BUILDERS))
def test_raw_attentions_are_those_of_the_family(family):
    model = build(family)
    lens = Lens(model)
    items = lens.read(example(family))
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**collate(items, "cpu"), use_cache=False, output_attentions=True)
    kinds = {"encoder_attentions": "encoder", "decoder_attentions": "decoder"}
    for index, captured in enumerate(lens.capture(items, weights=True, batch_size=1)):
        weights = {}
        for layer in captured.layers:
            weights.setdefault(layer.site.kind, []).append(layer.weights)
        for name, layers in maps(output).items():
            kind = next(iter(weights)) if name == "attentions" else kinds.get(name, "cross")
            raw = weights[kind]
            assert len(raw) == len(layers)
            for one, other in zip(raw, layers, strict=True):
                rows, keys = one.shape[-2:]
                own = other[index, :, :rows, :keys]
                assert_close(one, own, atol=2e-5, rtol=1e-3)
                assert not other[index, :, :rows, keys:].any()


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
    "wavlm",
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
