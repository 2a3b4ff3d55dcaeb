"""Effective attention where `output_attentions` has attention, and other measures in the same form."""

import subprocess
import sys

import pytest
import torch
import transformers
from packaging.version import Version

import identilens as idl
from helpers.zoo import BUILDERS, build, example, ids
from identilens.models import Lens
from identilens.models.inputs import collate
from identilens.models.registration import EFFECTIVE

# Gemma 4 chooses its mask by the name of the implementation from transformers 5.23 on.
BY_NAME = ("deepseek_v32", *["gemma4"][: Version(transformers.__version__) >= Version("5.23")])
FAMILIES = sorted(set(BUILDERS) - set(BY_NAME))


REGISTERED = """
import identilens, transformers
from identilens.models.registration import EFFECTIVE
print(EFFECTIVE in transformers.AttentionInterface().valid_keys())
{}
print(EFFECTIVE in transformers.AttentionInterface().valid_keys())
"""


@pytest.mark.parametrize(
    "what",
    [
        "identilens.register_attention()",
        "identilens.Lens(transformers.BertModel(transformers.BertConfig("
        "vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)))",
    ],
    ids=["call", "lens"],
)
def test_importing_alone_registers_nothing_and_a_lens_or_the_call_does(what):
    command = [sys.executable, "-c", REGISTERED.format(what)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["False", "True"]


def run(model, items, implementation):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(**collate(items, "cpu"), use_cache=False, output_attentions=True)


def maps(output):
    names = ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions")
    return {name: output[name] for name in names if output.get(name)}


@pytest.mark.parametrize("family", FAMILIES)
def test_attentions_are_effective_and_outputs_unchanged(family):
    model = build(family)
    lens = Lens(model)
    items = lens.read(example(family))
    plain, found = run(model, items, "eager"), run(model, items, EFFECTIVE)
    assert torch.equal(plain[0], found[0])
    raw, effective = maps(plain), maps(found)
    assert raw.keys() == effective.keys()
    kinds = {"attentions": None, "encoder_attentions": "encoder", "decoder_attentions": "decoder"}
    for index, item in enumerate(items):
        for name, layers in effective.items():
            wanted = idl.attentions(lens, item, kind=kinds.get(name, "cross"))
            given = idl.attentions(lens, item, kind=kinds.get(name, "cross"), measure="raw")
            assert len(wanted) == len(layers)
            for one, other, weights, own in zip(wanted, layers, given, raw[name], strict=True):
                rows, keys = one.shape[-2:]
                torch.testing.assert_close(
                    one[0], other[index, :, :rows, :keys], atol=2e-5, rtol=1e-3
                )
                torch.testing.assert_close(
                    weights[0], own[index, :, :rows, :keys], atol=2e-5, rtol=1e-3
                )
                assert not other[index, :, :rows, keys:].any()


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "mistral", "modernbert"])
def test_padding_on_either_side(family, side):
    """A long text, so that there is null attention, beside a short one."""
    model, texts = build(family), [ids(40), ids(23, 1)]
    tokens, mask = torch.zeros(2, 40, dtype=torch.long), torch.zeros(2, 40, dtype=torch.long)
    places = [slice(0, 40), slice(0, 23) if side == "right" else slice(17, 40)]
    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        tokens[row, place], mask[row, place] = torch.tensor(text), 1
    idl.register_attention()
    found = {}
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    options = {} if family == "bert" else {"position_ids": positions}
    for name in ("eager", EFFECTIVE):
        model.set_attn_implementation(name)
        with torch.no_grad():
            found[name] = model(tokens, attention_mask=mask, output_attentions=True, **options)
    assert torch.equal(found["eager"][0], found[EFFECTIVE][0])
    # Learned positions of BERT stand where the batch has them: its short text on the left is another input.
    for row in range(2 if (family, side) != ("bert", "left") else 1):
        for one, layer in zip(
            idl.attentions(Lens(model), texts[row]), found[EFFECTIVE].attentions, strict=True
        ):
            torch.testing.assert_close(
                one[0], layer[row, :, places[row], places[row]], atol=2e-5, rtol=1e-3
            )
    changes = (torch.stack(found[name].attentions) for name in ("eager", EFFECTIVE))
    assert (next(changes) - next(changes)).abs().max() > 1e-3


def test_measures_and_signs(bundled):
    text = (
        "The keeper of the lighthouse wrote down every ship, although none had stopped there for many years."
        * 3
    )
    found = {
        name: idl.attentions(bundled, text, measure=name) for name in ("raw", "effective", "norm")
    }
    (seen,) = bundled.capture(text, weights=True)
    head = list(seen.heads)[17]
    assert [len(layers) for layers in found.values()] == [6, 6, 6]
    torch.testing.assert_close(
        found["effective"][1][0, 5], head.effective.float(), atol=1e-5, rtol=1e-4
    )
    for name in ("raw", "norm"):
        torch.testing.assert_close(
            found[name][1].sum(-1), torch.ones(1, 12, head.values.shape[0]), atol=1e-4, rtol=0
        )
    effective = found["effective"][0]
    assert effective.min() < 0
    assert torch.equal(idl.attentions(bundled, text, signed="abs")[0], effective.abs())
    assert torch.equal(idl.attentions(bundled, text, signed="clip")[0], effective.clamp_min(0))
