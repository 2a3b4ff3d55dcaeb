"""Families that compute attention by themselves: followed from the softmax to the output projection."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from families.tiny import built, tiny_models
from families.trial import _runnable, _tried
from helpers.heads import seeded
from helpers.zoo import build, ids, swin
from identilens.errors import UnsupportedModelError
from identilens.models import Lens
from identilens.models.capture import Lengths
from identilens.models.following.steps import einsum_in_steps
from identilens.models.inputs import collate
from identilens.models.outputs import deviation

RELATIVE = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
FALCON = {"hidden_size": 32, "num_attention_heads": 4}
OPTIONS = {
    "deberta": RELATIVE, "deberta-v2": {**RELATIVE, "position_buckets": 8},
    "falcon, biased": {**FALCON, "num_kv_heads": 4, "alibi": True, "multi_query": False},
    "falcon, grouped": {**FALCON, "num_kv_heads": 2, "new_decoder_architecture": True},
    "funnel": {"block_sizes": [1], "block_repeats": [1], "num_decoder_layers": 1},
    "vitdet": {"use_relative_position_embeddings": True, "window_block_indices": [0]},
}  # fmt: skip
"""What a configuration has otherwise than by default."""
KINDS = (
    "blip", "bloom", "codegen", "deberta", "deberta-v2", "falcon", "falcon, biased", "falcon, grouped", "flaubert",
    "fsmt", "funnel", "gpt_neo", "gptj",
    "layoutlmv3", "luke", "mpnet", "mpt", "openai-gpt", "roformer", "sam", "siglip", "squeezebert", "timesformer",
    "vitdet", "wavlm", "xglm", "xlm",
)  # fmt: skip
BIASED = {
    "bloom", "deberta", "deberta-v2", "falcon, biased", "funnel", "layoutlmv3", "mpnet", "mpt", "sam", "vitdet",
    "wavlm",
}  # fmt: skip
MOVED = {"codegen", "gptj", "layoutlmv3"}
"""Families that call transformers' attention interface since its release 5.24."""
UNREPORTED = {"blip", "falcon, biased", "sam", "siglip", "squeezebert", "timesformer"}
"""Families that report no weights, or others than they compute with."""


def tiny(kind):
    """A lens on a tiny model, and inputs for it."""
    model = next(tiny_models(kind.partition(",")[0]))
    if kind in OPTIONS:
        config = type(model.config)(**{**model.config.to_dict(), **OPTIONS[kind]})
        model = built(type(model), config)
    return Lens(model), _runnable(model, [])


@pytest.mark.parametrize("kind", KINDS)
def test_families_prove_themselves_and_weights_are_their_own(kind):
    """Also in batches that are padded on either side."""
    lens, inputs = tiny(kind)
    found = _tried(kind, lens.model, inputs)
    assert found.outcome == "served", found
    assert found.way == "followed" or kind in MOVED
    assert (found.difference is None) == (kind in UNREPORTED)
    assert (found.difference or 0.0) <= 5e-5
    [text] = lens.capture(lens.read(next(iter(inputs.values())))[0], weights=True)
    assert all(head.follows_logits for head in text.heads)
    assert any(layer.bias is not None for layer in text.layers) == (kind in BIASED)


def test_weights_of_a_family_that_reports_its_logits():
    lens, inputs = tiny("squeezebert")
    item = lens.read(inputs["text"])[0]
    with torch.no_grad():
        reported = lens.body(**collate([item], "cpu"), output_attentions=True).attentions
    [text] = lens.capture(item, weights=True)
    for layer, logits in zip(text.layers, reported, strict=True):
        assert_close(layer.weights, logits[0].softmax(-1), atol=5e-5, rtol=0)


@pytest.mark.parametrize("kind", ["deberta-v2", "falcon, grouped", "fsmt", "siglip"])
def test_weights_put_in_reach_the_output(kind):
    lens, inputs = tiny(kind)
    items = lens.read(next(iter(inputs.values())))[:1]
    plain = lens.run(items)
    without = lens.run(items, lambda call: torch.zeros_like(call.attend()[0]), changes=True)
    assert deviation(plain, without, Lengths(items), items) > 0.01


def test_windows_stand_as_blocks_in_one_map():
    for model in (swin(), swin("v2")):
        model.set_attn_implementation("eager")
        lens = Lens(model)
        batch = {"pixel_values": torch.randn(2, 3, 16, 16, generator=seeded(3))}
        assert all(check.passed for check in lens.prove(lens.read(batch)))
        with torch.no_grad():
            own = model(**batch, output_attentions=True).attentions[0]
        for text, windows in zip(lens.capture(batch, weights=True), own.chunk(2), strict=True):
            layer = text.layers[-1]
            assert all(head.follows_logits and head.bias is not None for head in text.heads)
            blocks = torch.stack([torch.block_diag(*windows[:, head]) for head in range(2)])
            assert_close(layer.weights, blocks, atol=5e-5, rtol=0)
            assert torch.equal(layer.visible, torch.block_diag(*torch.ones(4, 16, 16)).bool())


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
    model = next(tiny_models(family))
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


def drawn(*shape):
    return torch.randn(*shape, generator=seeded(sum(shape)))


LEFT, RIGHT = drawn(2, 4, 5), drawn(2, 5, 6)
EINSUMS = {
    "bnk,bkd->bnd": (LEFT, RIGHT), "bkn,bkd->bnd": (LEFT.mT, RIGHT), "bnk, bdk -> bdn": (LEFT, RIGHT.mT),
    "bnhk,bmhk->bhnm": (drawn(2, 4, 3, 5), drawn(2, 6, 3, 5)), "bhnk,hkd->nbhd": (drawn(2, 3, 4, 5), drawn(3, 5, 6)),
    "nk,bkd->bnd": (LEFT[0], RIGHT), "abnk,kd->abnd": (drawn(2, 3, 4, 5), RIGHT[0]),
}  # fmt: skip


@pytest.mark.parametrize("form", EINSUMS)
@pytest.mark.parametrize("listed", [False, True])
def test_sums_over_one_axis_are_products(form, listed):
    operands = EINSUMS[form]
    found = einsum_in_steps(form, [*operands]) if listed else einsum_in_steps(form, *operands)
    assert_close(found, torch.einsum(form, *operands))


@pytest.mark.parametrize(
    "args",
    [
        ["bnk,bkd", LEFT, RIGHT],
        ["...nk,...kd->...nd", LEFT, RIGHT],
        ["bnk,bnk->bnk", LEFT, LEFT],
        ["bnk,bkd->nd", LEFT, RIGHT],
        ["bkk,bkd->bd", LEFT[:, :, :4], LEFT],
        ["bnk,bkd,bkd->bnd", LEFT, RIGHT, RIGHT],
        [LEFT, RIGHT, LEFT],
    ],
)  # fmt: skip
def test_other_forms_are_no_products_of_two_matrices(args):
    assert einsum_in_steps(*args) is None


EINSUM = {
    "weights first": ("bnmh,bmhd->bnhd", lambda weights, values: (weights, values)),
    "values first": ("bmhd,bnmh->bnhd", lambda weights, values: (values, weights)),
}


@pytest.mark.parametrize("how", EINSUM)
def test_attention_by_einsum_is_followed(how):
    class SummedAttention(_Own):
        def forward(self, hidden_states, *args, **kwargs):
            q, k, v = self.parts(hidden_states).unflatten(-1, (3, 4, -1)).unbind(2)
            weights = torch.einsum("bnhd,bmhd->bhnm", q, k).softmax(-1)
            seen.append(weights)
            form, order = EINSUM[how]
            mixed = torch.einsum(form, *order(weights.permute(0, 2, 3, 1), v))
            return self.out(mixed.flatten(2)), None

    model, seen = build("bert"), []
    torch.manual_seed(0)
    for layer in model.encoder.layer:
        layer.attention.self = SummedAttention(32, None)
    (text,) = Lens(model).capture([ids(9)], weights=True)
    for layer, weights in zip(text.layers, seen[-2:], strict=True):
        assert_close(layer.weights, weights[0], atol=1e-6, rtol=0)
