"""A head's weights in float64: computed again from its queries and keys, in every precision a model may be in."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import BUILDERS, build, example
from identilens.errors import InputError, UnsupportedModelError

HALF = {"float16": torch.float16, "bfloat16": torch.bfloat16}
ROUNDING = {torch.float32: 1e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}
"""Largest difference of a weight of the tiny models from the softmax in float64."""


def heads_of(family, dtype):
    inputs = example(family)
    if isinstance(inputs, dict):
        inputs = {
            name: one.to(dtype) if one.is_floating_point() else one for name, one in inputs.items()
        }
    lens = idl.Lens(build(family).to(dtype))
    return [head for text in lens.capture(inputs, weights=True) for head in text.heads]


def softmax(head):
    """The weights written out by hand."""
    logits = head.scaling * torch.einsum("qd,kd->qk", head.queries.double(), head.keys.double())
    if head.softcap is not None:
        logits = head.softcap * torch.tanh(logits / head.softcap)
    if head.bias is not None:
        logits = logits + head.bias.double()
    exponentials = torch.exp(logits - logits.amax(-1, keepdim=True))
    if head.visible is not None:
        exponentials = exponentials * head.visible
    return exponentials / exponentials.sum(-1, keepdim=True)


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("family", sorted(set(BUILDERS) - {"gpt_oss"}))
def test_weights_are_the_softmax_of_the_heads_own_queries_and_keys(family, dtype):
    if dtype != torch.float32 and family not in (
        "bert",
        "dyck",
        "gemma2",
        "llama",
        "modernbert",
        "opt",
        "t5",
    ):
        pytest.skip("half precision in one family of each kind")
    for head in heads_of(family, dtype):
        assert head.follows_logits
        assert head.attention.dtype == torch.float64
        assert_close(head.attention, softmax(head), atol=1e-13, rtol=1e-9)
        assert (head.attention - head.weights).abs().max() < ROUNDING[dtype]
        assert (head.softcap is not None) == (family == "gemma2")


@pytest.mark.parametrize("dtype", ROUNDING)
def test_sinks_and_unknown_soft_caps_are_seen(dtype):
    # A family that caps logits of 5 or so without saying so.
    capped = [replace(head, queries=4 * head.queries) for head in heads_of("gemma2", dtype)]
    capped = [replace(head, weights=head.recomputed.to(dtype), softcap=None) for head in capped]
    for head in [*heads_of("gpt_oss", dtype), *capped]:
        if head.head_output.shape[0] > 6:  # short rows have no large logits
            assert not head.follows_logits
        if head.follows_logits:
            continue
        if dtype == torch.float32:
            assert torch.equal(head.attention, head.weights.double())
        else:
            with pytest.raises(UnsupportedModelError, match="precision"):
                _ = head.attention


def test_a_small_sink_is_seen_in_half_precision():
    """Its mass spreads over all weights, where it is less than their rounding; the row's sum shows it."""
    head = heads_of("bert", torch.bfloat16)[0]
    seen = replace(head, weights=(head.recomputed * 0.97).bfloat16())
    assert (seen.weights - head.recomputed).abs().max() < 4e-2
    assert head.follows_logits
    assert not seen.follows_logits


def test_the_error_of_other_weights_is_relative_to_the_output():
    for head in heads_of("bert", torch.float32)[:2]:
        assert head.output_error(head.attention) == 0
        assert head.output_error(3 * head.attention) == pytest.approx(2)


def test_the_freedom_of_a_causal_head_is_that_of_its_freest_row():
    lens, text = idl.Lens(build("gpt2")), [list(range(3, 33))]
    heads = next(lens.capture(text, weights=True)).heads
    table = idl.audit(lens, text, certain_rows=0, examples=0).table
    assert [head.simplex_nullity for head in heads] == table["simplex_nullity"].to_list()
    assert table["simplex_nullity"].min() > 0, "the last row, which sees most keys"


@pytest.mark.parametrize("dtype", [*HALF, "float32"])
def test_sinks_are_refused_however_small(dtype):
    model = build("gpt_oss").to(HALF.get(dtype, torch.float32))
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.data.fill_(-20.0)
    text = {"input_ids": torch.arange(5, 30)[None]}
    for study in (idl.certify, idl.alternatives):
        with pytest.raises(InputError, match="attention"):
            study(idl.Lens(model), text, layers=0, heads=0)


def test_an_audit_leaves_out_what_half_precision_hides(tmp_path):
    found = idl.audit(
        idl.Lens(build("gpt_oss").bfloat16()), {"input_ids": torch.arange(5, 30)[None]}
    )
    hidden = found.table["certain_rows"] == 0
    assert hidden.any(), "where the sinks' mass is no rounding"
    assert (hidden == found.table["certain_mass"].is_null()).all()
    assert found.to_html(tmp_path / "report.html").is_file()
