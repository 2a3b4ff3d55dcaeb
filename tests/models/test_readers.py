"""Blocks whose output is not the sum of their heads' outputs are refused; linear adapters are served."""

import pytest
import torch
from torch import nn

from helpers.zoo import build, ids
from identilens.errors import UnsupportedModelError
from identilens.models import Lens


class Changed(nn.Module):
    """A projection beside which something else reads the outputs of the heads."""

    def __init__(self, projection, change):
        super().__init__()
        self.projection, self.change = projection, change
        self.side = nn.Linear(projection.in_features, projection.out_features)
        self.square = nn.Linear(projection.in_features, projection.in_features)

    def forward(self, mixed):
        return self.change(self, mixed)


CHANGES = {
    "a gate of the mixture": lambda own, z: own.projection(z * torch.sigmoid(own.square(z))),
    "a side map first": lambda own, z: own.side(z).relu() + own.projection(z),
    "a side map after": lambda own, z: own.projection(z) + own.side(z).relu(),
    "a bounded sum": lambda own, z: torch.tanh(own.projection(z)),
    "a linear side map of another size": lambda own, z: own.projection(z) * own.side(z).sum(-1, keepdim=True),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("family", ["llama", "bert"])
def test_another_reader_of_the_mixture_is_refused(family, change):
    torch.manual_seed(0)
    model = build(family)
    for layer in model.base_model.layers if family == "llama" else model.base_model.encoder.layer:
        owner, name = (
            (layer.self_attn, "o_proj") if family == "llama" else (layer.attention.output, "dense")
        )
        setattr(owner, name, Changed(getattr(owner, name), CHANGES[change]).eval())
    with pytest.raises(
        UnsupportedModelError, match=r"not the sum of its heads' outputs|no linear map"
    ):
        next(Lens(model).capture(ids(9), weights=True))


def code_of_its_own(change):
    def forward(self, hidden_states, *args, **kwargs):
        own, self.o_proj = self.o_proj, nn.Identity()
        try:
            mixed, weights = type(self).forward(self, hidden_states, *args, **kwargs)
        finally:
            self.o_proj = own
        return change(self, mixed), weights

    return forward


OWN = {
    "gate": lambda self, z: self.o_proj(z * torch.sigmoid(self.side(z))),
    "side first": lambda self, z: (self.side(z), self.o_proj(z))[1],
    "side added": lambda self, z: self.o_proj(z) + self.side(z).relu(),
    "bounded": lambda self, z: torch.tanh(self.o_proj(z)),
}


@pytest.mark.parametrize("change", OWN)
def test_attention_modules_that_do_more_are_refused(change):
    torch.manual_seed(0)
    model = build("llama")
    for layer in model.base_model.layers:
        attention = layer.self_attn
        attention.side = nn.Linear(attention.o_proj.in_features, attention.o_proj.in_features)
        attention.forward = code_of_its_own(OWN[change]).__get__(attention)
    with pytest.raises(UnsupportedModelError, match="outputs"):
        next(Lens(model).capture(ids(9), weights=True))


def test_a_linear_adapter_beside_the_attention_stays_right():
    torch.manual_seed(0)
    model = build("llama")
    for layer in model.base_model.layers:
        beside = nn.Linear(layer.self_attn.o_proj.in_features, 32, bias=False)
        layer.self_attn.beside = beside
        layer.self_attn.register_forward_hook(
            lambda _module, _args, kwargs, output, beside=beside: (
                output[0] + beside(kwargs["hidden_states"]),
                *output[1:],
            ),
            with_kwargs=True,
        )
    lens = Lens(model)
    assert all(check.passed for check in lens.prove(lens.read(ids(9))))
