"""Families that compute attention by themselves: followed from the softmax to the output projection."""

import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from helpers.heads import seeded
from helpers.own_attention import DECODERS, ENCODERS, FAMILIES, build_own, example_own
from helpers.zoo import build, ids, swin
from identilens.errors import UnsupportedModelError
from identilens.models import Lens
from identilens.models.capture import Lengths
from identilens.models.inputs import collate
from identilens.models.outputs import deviation

TEXTS = sorted(ENCODERS | DECODERS)
BIASED = {"bloom", "deberta", "deberta_v2", "falcon_alibi", "funnel", "layoutlmv3", "mpnet", "mpt", "sam", "swinv2",
          "vitdet", "wavlm"}  # fmt: skip
MOVED = {"codegen", "gptj", "layoutlmv3"}
"""Families that call transformers' attention interface since its release 5.24."""


def reported(lens, item):
    """The family's own weights, a layer after another: encoder, decoder, cross."""
    with torch.no_grad():
        output = lens.body(**collate([item], "cpu"), use_cache=False, output_attentions=True)
    names = ("encoder_attentions", "decoder_attentions", "cross_attentions", "attentions")
    return [one[0] for name in names for one in output.get(name) or ()]


def ordered(text):
    return sorted(
        text.layers, key=lambda layer: ("encoder", "decoder", "cross").index(layer.site.kind)
    )


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_families_prove_themselves(family):
    lens = Lens(build_own(family))
    checks = lens.prove(lens.read(example_own(family)))
    module = sys.modules[type(lens.body).__module__]
    moved = family in MOVED and hasattr(module, "ALL_ATTENTION_FUNCTIONS")
    assert lens.capture_way == ("interface" if moved else "followed")
    assert len(checks) >= 9
    assert [check for check in checks if not check.passed] == []
    (text,) = lens.capture(lens.read(example_own(family))[0], weights=True)
    assert all(head.follows_logits for head in text.heads)
    assert any(layer.bias is not None for layer in text.layers) == (family in BIASED)


@pytest.mark.parametrize("family", sorted(set(TEXTS) - {"falcon", "falcon_alibi", "falcon_groups"}))
def test_weights_are_the_familys_own(family):
    model = build_own(family)
    model.set_attn_implementation("eager")
    lens = Lens(model)
    items = lens.read(example_own(family))
    for item, text in zip(items, lens.capture(example_own(family), weights=True), strict=True):
        own = reported(lens, item)
        assert len(own) == len(text.layers)
        for layer, weights in zip(ordered(text), own, strict=True):
            # SqueezeBERT reports its logits.
            weights = weights.softmax(-1) if family == "squeezebert" else weights
            assert_close(layer.weights, weights, atol=5e-5, rtol=0)


@pytest.mark.parametrize("family", ["deberta_v2", "bloom", "gptj", "mpt"])
def test_padding_on_either_side_changes_nothing(family):
    lens = Lens(build_own(family))
    alone = [next(lens.capture([ids(length)], weights=True)) for length in (9, 6)]
    for left in (False, True):
        rows = [[0] * (9 - n) + ids(n) if left else ids(n) + [0] * (9 - n) for n in (9, 6)]
        mask = torch.tensor(
            [[0] * (9 - n) + [1] * n if left else [1] * n + [0] * (9 - n) for n in (9, 6)]
        )
        batch = {"input_ids": torch.tensor(rows), "attention_mask": mask}
        for one, other in zip(alone, lens.capture(batch, weights=True), strict=True):
            for layer, again in zip(one.layers, other.layers, strict=True):
                assert_close(layer.weights, again.weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["deberta_v2", "falcon_groups", "fsmt", "siglip", "swinv2"])
def test_weights_put_in_reach_the_output(family):
    lens = Lens(build_own(family))
    items = lens.read(example_own(family))[:1]
    plain = lens.run(items)
    without = lens.run(items, lambda call: torch.zeros_like(call.attend()[0]), changes=True)
    assert deviation(plain, without, Lengths(items), items) > 0.01


def test_windows_stand_as_blocks_in_one_map():
    for model in (swin(), build_own("swinv2")):
        model.set_attn_implementation("eager")
        lens = Lens(model)
        batch = {"pixel_values": torch.randn(2, 3, 16, 16, generator=seeded(3))}
        with torch.no_grad():
            own = model(**batch, output_attentions=True).attentions[0]
        for text, windows in zip(lens.capture(batch, weights=True), own.chunk(2), strict=True):
            layer = text.layers[-1]
            assert all(head.follows_logits and head.bias is not None for head in text.heads)
            blocks = torch.stack([torch.block_diag(*windows[:, head]) for head in range(2)])
            assert_close(layer.weights, blocks, atol=5e-5, rtol=0)
            assert torch.equal(layer.visible, torch.block_diag(*torch.ones(4, 16, 16)).bool())


def test_families_of_the_interface_are_captured_there():
    lens = Lens(build("bert"))
    assert lens.capture_way is None
    next(lens.capture([ids(9)]))
    assert lens.capture_way == "interface"


class _Own(nn.Module):
    """Attention by itself, with something done to the outputs of its heads."""

    def __init__(self, size, change):
        super().__init__()
        self.parts, self.out, self.change = nn.Linear(size, 3 * size), nn.Linear(size, size), change

    def forward(self, hidden_states, *args, **kwargs):
        parts = self.parts(hidden_states).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        weights = (parts[0] @ parts[1].mT).softmax(-1)
        return self.out(self.change(weights, parts[2])), None


class ChangedAttention(_Own):
    """Named so that it is found."""


def _joined(weights, values):
    return (weights @ values).transpose(1, 2).flatten(2)


CHANGES = {
    r"adds a term beyond weights times values before a linear map \(relative values, .* no output projection\)": (
        lambda w, v: _joined(w, v) + _joined(w, v.flip(-2))
    ),
    r"multiplies them by what differs from query to query \(a norm, or a gate": lambda w, v: (
        _joined(w, v) * torch.rand(1, 9, 32)
    ),
    "puts them beside something else": lambda w, v: torch.cat([_joined(w, v), _joined(w, v)], -1)[
        ..., :32
    ],
    "does not put the outputs of its heads side by side": lambda w, v: (
        (w @ v).permute(0, 2, 3, 1).flatten(2)
    ),
    "takes a softmax and does not multiply it": lambda w, v: _joined(
        w * v.mean(-1).softmax(-1)[..., None, :], v
    ),
}


@pytest.mark.parametrize("reason", sorted(CHANGES))
def test_what_cannot_be_followed_is_refused_with_the_reason(reason):
    model = build("bert")
    torch.manual_seed(0)
    for layer in model.encoder.layer:
        layer.attention.self = ChangedAttention(32, CHANGES[reason])
    with pytest.raises(UnsupportedModelError, match=f"ChangedAttention .*{reason}"):
        next(Lens(model).capture([ids(9)]))


def test_layers_that_depend_on_the_length_are_refused():
    def change(weights, values):
        if weights.shape[-1] > 8:
            torch.matmul(weights, values)
        return _joined(weights, values)

    model = build("bert")
    model.encoder.layer[0].attention.self = ChangedAttention(32, change)
    next(Lens(model).capture([ids(8)]))
    with pytest.raises(UnsupportedModelError, match="multiplies"):
        next(Lens(model).capture([ids(9)]))


FAR_APART = {"bloom": "query_key_value", "falcon": "query_key_value", "gpt_neo": "q_proj"}


@pytest.mark.parametrize("family", sorted(FAR_APART))
@pytest.mark.parametrize("heads", [1, 4])
def test_keys_far_below_others_are_not_taken_for_masked(family, heads):
    """Logits more than 10,000 apart are no mask: every earlier key is seen."""
    model = build_own(family)
    if heads == 1:
        config = type(model.config)(**{**model.config.to_dict(), ONE_HEAD[family]: 1})
        model = type(model)(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if FAR_APART[family] in name:
                parameter *= 3e4
    (text,) = Lens(model).capture([list(range(3, 12))], weights=True)
    logits = [head.queries @ head.keys.T * head.scaling for head in text.heads]
    assert max(float(one.max() - one.min()) for one in logits) > 10_000
    # Later layers of GPT-Neo have windows.
    for head in text.layers[0].heads:
        assert torch.equal(head.visible, torch.ones(9, 9, dtype=torch.bool).tril())


ONE_HEAD = {"bloom": "n_head", "falcon": "num_attention_heads", "gpt_neo": "num_heads"}


SCALES = {
    "times a number of each row": lambda scores, scale: scores * scale,
    "over a number of each row": lambda scores, scale: scores / scale,
    "a number of each row times them": lambda scores, scale: scale * scores,
}


@pytest.mark.parametrize("how", SCALES)
def test_scores_may_be_scaled_by_a_number_of_each_row(how):
    class ScaledAttention(_Own):
        def forward(self, hidden_states, *args, **kwargs):
            parts = self.parts(hidden_states).unflatten(-1, (3, 4, -1)).permute(2, 0, 3, 1, 4)
            scale = 0.5 + torch.sigmoid(hidden_states.mean(-1))[:, None, :, None]
            weights = SCALES[how](parts[0] @ parts[1].mT, scale).softmax(-1)
            seen.append(weights)
            return self.out(_joined(weights, parts[2])), None

    model, seen = build("bert"), []
    torch.manual_seed(0)
    for layer in model.encoder.layer:
        layer.attention.self = ScaledAttention(32, None)
    (text,) = Lens(model).capture([ids(9)], weights=True)
    expected = [one[0] for one in seen[-2:]]
    for layer, weights in zip(text.layers, expected, strict=True):
        assert layer.bias is None
        for head, own in zip(layer.heads, weights, strict=True):
            assert torch.allclose(head.recomputed.float(), own, atol=1e-6)
            assert float((own - own.mean(1, keepdim=True)).abs().max()) > 1e-3
