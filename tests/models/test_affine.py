"""The output projection is the linear map that runs: adapters, hooks and wrappers count."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.zoo import build, ids
from identilens.errors import InputError, UnsupportedModelError
from identilens.models import Lens
from identilens.models.affine import is_linear


def off_by(lens, item):
    """Largest relative difference between the heads' sum and what the block gives, over the layers."""
    text = next(lens.capture([item], weights=True))
    modules = [layer.site.projection for layer in text.layers]
    found: list[torch.Tensor] = []
    hooks = [
        module.register_forward_hook(lambda module, args, output: found.append(output[0]))
        for module in modules
    ]
    lens.run(lens.read([item]))
    for hook in hooks:
        hook.remove()
    return max(
        float((sum(head.head_output @ head.output_projection for head in layer.heads) + layer.site.output_bias - block)
              .abs().max() / block.abs().max())
        for layer, block in zip(text.layers, found, strict=True)
    )  # fmt: skip


def with_adapter(model, config):
    peft = pytest.importorskip("peft", reason="pip install peft for the tests of adapters")
    torch.manual_seed(1)
    peft.inject_adapter_in_model(getattr(peft, config.pop("kind"))(**config), model)
    return model.eval()


TARGETS = {"llama": ["o_proj", "v_proj"], "gpt2": ["c_proj"], "bert": ["output.dense"]}
ADAPTERS = {
    "lora": {"kind": "LoraConfig", "r": 4, "init_lora_weights": False, "lora_alpha": 16},
    "dora": {
        "kind": "LoraConfig", "r": 4, "init_lora_weights": False, "lora_alpha": 16, "use_dora": True,
    },
    "ia3": {"kind": "IA3Config", "init_ia3_weights": False},
    "loha": {"kind": "LoHaConfig", "r": 4, "init_weights": False},
}  # fmt: skip


@pytest.mark.parametrize("family", sorted(TARGETS))
@pytest.mark.parametrize("adapter", sorted(ADAPTERS))
def test_an_adapter_on_the_output_projection_is_part_of_it(family, adapter):
    config = {**ADAPTERS[adapter], "target_modules": TARGETS[family]}
    if adapter == "loha" and family == "gpt2":
        pytest.skip("peft has no LoHa for GPT-2's Conv1D")
    if adapter == "ia3":
        # What is scaled is the input of a layer that is named here, the output of others.
        config["feedforward_modules"] = TARGETS[family][:1]
    if family == "gpt2":
        config["fan_in_fan_out"] = True
    lens = Lens(with_adapter(build(family), config))
    assert off_by(lens, ids(9)) < 1e-5


def test_a_module_that_is_no_transformer_is_refused():
    with pytest.raises(InputError, match="transformers"):
        Lens(nn.Linear(2, 2))


class Doubled(nn.Module):
    """A wrapper of the kind that adapters are: runs another map than its base layer's weight."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.dropout = nn.Dropout(0.5)

    def forward(self, x):
        return self.base(x) * 2 + self.dropout(x).flip(-1)


def test_a_wrapper_of_unknown_make_is_probed_in_evaluation_mode():
    model = build("bert").train()
    for layer in model.encoder.layer:
        layer.attention.output.dense = Doubled(layer.attention.output.dense)
    assert off_by(Lens(model), ids(9)) < 1e-5
    assert model.encoder.layer[0].attention.output.dense.dropout.training


def test_a_hook_that_changes_the_projection_counts():
    model = build("gpt2")
    lens, item = Lens(model), Lens(model).read([ids(9)])[0]
    plain = lens.sites(item)[0].output_projection
    with model.transformer.h[0].attn.c_proj.register_forward_hook(
        lambda module, args, output: output * 3
    ):
        assert_close(lens.sites(item)[0].output_projection, 3 * plain)
    assert off_by(lens, ids(9)) < 1e-5


def test_a_layer_with_a_forward_of_its_own_is_not_read_but_run():
    model = build("bert")
    lens, item = Lens(model), Lens(model).read([ids(9)])[0]
    plain = lens.sites(item)[0].output_projection
    layer = model.encoder.layer[0].attention.output.dense
    layer.forward = lambda inputs: 3 * nn.Linear.forward(layer, inputs)
    assert_close(lens.sites(item)[0].output_projection, 3 * plain)


def test_a_wrapper_that_bends_its_output_is_refused():
    class Bent(Doubled):
        def forward(self, x):
            return torch.relu(self.base(x * 1.5))

    model = build("bert")
    model.encoder.layer[0].attention.output.dense = Bent(
        model.encoder.layer[0].attention.output.dense
    )
    with pytest.raises(UnsupportedModelError, match="rounding"):
        next(Lens(model).capture([ids(9)]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_linearity_is_told_in_every_precision(dtype):
    torch.manual_seed(0)
    module, inputs = Doubled(nn.Linear(16, 16)).to(dtype).eval(), torch.randn(1, 9, 16, dtype=dtype)
    assert is_linear(module, inputs)
    assert not is_linear(nn.Sequential(module, nn.GELU()), inputs)
    assert not is_linear(nn.Identity(), inputs)
