"""Families whose attention is more than weights times values, or is changed afterwards, are refused saying why."""

import pytest
import torch
import transformers as hf
from torch import nn
from torch.testing import assert_close
from transformers.models.bert import modeling_bert
from transformers.models.llama import modeling_llama

import identilens as idl
from families.tiny import tiny_models
from families.trial import _runnable
from helpers.zoo import build, ids
from identilens.errors import UnsupportedModelError
from identilens.models import Lens

_SMALL = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 32,
}  # fmt: skip
OWN_ATTENTION = {
    "canine": (
        lambda: hf.CanineModel(
            hf.CanineConfig(**{key: _SMALL[key] for key in _SMALL if key != "vocab_size"})
        ),
        "CanineSelfAttention .*puts them beside something else",
    ),
    "convbert": (
        lambda: hf.ConvBertModel(hf.ConvBertConfig(**_SMALL)),
        r"ConvBertSelfAttention .*puts them beside something else \(features of convolutions",
    ),
    "longformer": (
        lambda: hf.LongformerModel(hf.LongformerConfig(**_SMALL, attention_window=4)),
        "LongformerSelfAttention takes a softmax and does not multiply it with one matrix of values",
    ),
    "nystromformer": (
        lambda: hf.NystromformerModel(
            hf.NystromformerConfig(**_SMALL, num_landmarks=8, segment_means_seq_len=8)
        ),
        "NystromformerSelfAttention .*adds a term beyond weights times values",
    ),
    "xlnet": (
        lambda: hf.XLNetModel(
            hf.XLNetConfig(vocab_size=96, d_model=32, n_layer=1, n_head=4, d_inner=32)
        ),
        "XLNetRelativeAttention .*multiplies them by a parameter of its own",
    ),
    "fnet": (
        lambda: hf.FNetModel(
            hf.FNetConfig(**{key: _SMALL[key] for key in _SMALL if "heads" not in key})
        ),
        r"FNetModel \(fnet\) cannot be audited: it ran no attention",
    ),
}


@pytest.mark.parametrize("family", sorted(OWN_ATTENTION))
def test_families_beyond_weights_times_values_are_refused_saying_why(family):
    model, reason = OWN_ATTENTION[family]
    with pytest.raises(UnsupportedModelError, match=reason):
        next(Lens(model().eval()).capture([ids(8)]))


class OwnAttention(nn.Module):
    """Attention of its own making: its weights are normalised by a sum, or not at all."""

    def __init__(self, normalised):
        super().__init__()
        self.normalised = normalised

    def forward(self, hidden_states, *args, **kwargs):
        weights = (hidden_states @ hidden_states.mT / 9).exp()
        if self.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return weights @ hidden_states, None


class SampledAttention(nn.Module):
    """Adds up what it is given, by weights from elsewhere."""

    def forward(self, states, weights):
        return (weights[..., None] * states[:, None]).sum(2)


class Sampling(nn.Module):
    """Deformable attention: the softmax stands in one module, and the sum in another."""

    def __init__(self):
        super().__init__()
        self.inner_attention = SampledAttention()

    def forward(self, hidden_states, *args, **kwargs):
        return self.inner_attention(
            hidden_states, torch.softmax(hidden_states @ hidden_states.mT, -1)
        ), None


class Soft(nn.Module):
    """A softmax over another axis than the last."""

    def forward(self, hidden_states, *args, **kwargs):
        return torch.softmax(hidden_states, 1), None


@pytest.mark.parametrize(
    "make", [lambda: OwnAttention(True), Sampling, type("SoftAttention", (Soft,), {})]
)
def test_partial_bypass_is_refused(make):
    """One attention module of several that computes by itself would leave its heads unaudited."""
    model = build("bert")
    model.encoder.layer[1].attention.self = make()
    with pytest.raises(
        UnsupportedModelError, match="(Own|Sampled|Soft)Attention does its own attention"
    ):
        next(Lens(model).capture([ids(8)]))


def test_attention_in_name_alone_is_a_layer_without_attention():
    model = build("bert")
    model.encoder.layer[1].attention.self = OwnAttention(False)
    lens = Lens(model)
    assert [layer.site.layer for layer in next(lens.capture([ids(8)])).layers] == [0]
    assert lens.other_layers == ("encoder.layer.1 (BertLayer)",)


def test_a_model_that_draws_random_numbers_is_refused_saying_so():
    config = hf.ViTMAEConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32, image_size=16, patch_size=4,
    )  # fmt: skip
    lens = Lens(hf.ViTMAEModel(config).eval())
    picture = {"pixel_values": torch.linspace(0, 90, 3 * 16 * 16).sin().view(1, 3, 16, 16)}
    with pytest.raises(
        UnsupportedModelError,
        match="does the model draw random numbers",
    ):
        next(lens.capture(picture))
    assert (
        len(next(lens.capture({**picture, "noise": torch.linspace(0, 50, 16).sin()[None]})).layers)
        == 1
    )


def test_a_model_whose_answer_is_no_number_is_refused_with_that_reason():
    model = build("llama")
    words = "failed with nan .*or overflow in half precision"
    with (
        model.model.norm.register_forward_hook(lambda *given: given[-1] * torch.nan),
        pytest.raises(UnsupportedModelError, match=words),
    ):
        next(Lens(model).capture([ids(8)]))
    assert len(next(Lens(model).capture([ids(8)])).layers) == 2


def test_heads_may_share_keys_where_the_eager_function_takes_one_per_head():
    model = build("llama")
    expected = next(Lens(model).capture([ids(8)], weights=True))
    model.set_attn_implementation("sdpa")

    def per_head(module, query, key, value, mask, scaling, **arguments):
        weights = torch.softmax(query @ key.mT * scaling + (0 if mask is None else mask), -1)
        return (weights @ value).transpose(1, 2), weights

    captured = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(modeling_llama, "eager_attention_forward", per_head)
        captured = next(Lens(model).capture([ids(8)], weights=True))
    for layer, other in zip(captured.layers, expected.layers, strict=True):
        assert len(layer.values) == 2
        assert_close(layer.weights, other.weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["glpn", "segformer"])
def test_convolutions_between_positions_are_found_by_structure(family):
    lens = idl.Lens(next(tiny_models(family)))
    picture = _runnable(lens.model, [])["picture"]
    lens.sites(lens.read(picture)[0])
    assert len(lens.mixing_layers) == len({site.slot for site in lens._sites})
    with pytest.raises(UnsupportedModelError, match="mix positions by more than attention"):
        idl.rollout(lens, picture)


def test_an_eager_function_that_fails_is_refused_with_its_words(monkeypatch):
    def broken(*given, **options):
        raise RuntimeError("The size of tensor a must match\nmore")

    model = build("bert")
    model.set_attn_implementation("sdpa")
    monkeypatch.setattr(modeling_bert, "eager_attention_forward", broken)
    why = "BertModel does not run on these inputs: RuntimeError: The size of tensor a must match"
    with pytest.raises(UnsupportedModelError, match=why):
        next(Lens(model).capture([ids(5)], weights=True))


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
