"""A head's weights in float64: computed again from its queries and keys, in every precision a model may be in."""

from dataclasses import replace

import pytest
import torch

import identilens as idl
from helpers.zoo import BUILDERS, build, example
from identilens.errors import InputError, UnsupportedModelError
from identilens.measures.attention import least_logit_rank

TEXT = (
    "The river had risen during the night, and by morning the lower meadow lay under a sheet of brown water in which "
    "the fence posts stood like the teeth of a broken comb. Nobody in the village was surprised, because the old "
    "people had said for weeks that the ice in the hills would go at once."
)
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
        torch.testing.assert_close(head.attention, softmax(head), atol=1e-13, rtol=1e-9)
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
            with pytest.raises(
                UnsupportedModelError, match=r"in half precision, and not as .*--dtype float32"
            ):
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


def test_heads_without_weights_say_how_to_get_them():
    head = next(idl.Lens(build("bert")).capture([[5, 6, 7]])).layers[0].head(0)
    for read in (lambda: head.attention, lambda: head.family_weights):
        with pytest.raises(
            InputError, match="captured without its weights; capture with weights=True"
        ):
            read()


@pytest.fixture(scope="module", params=HALF)
def half(request, bundled_path):
    """The bundled encoder in half precision."""
    return idl.load(bundled_path, dtype=request.param, device="cpu")


def test_logit_ranks_of_a_real_model_are_those_of_its_queries_and_keys(half):
    for head in next(half.capture(TEXT, weights=True)).heads:
        assert int(least_logit_rank(head.attention)) <= head.d_k == 32
        assert int(least_logit_rank(head.weights.double().clamp_min(1e-30))) > 40, (
            "rounding has full rank"
        )
    found = idl.lab.logit_ranks(half, TEXT, layers=(0, 5), heads=3, count=3, lengths=(1, 4))
    assert found.table["original_rank"].max() <= 32


def test_intervals_and_alternatives_of_a_real_model(half):
    head = next(half.capture(TEXT, weights=True)).layers[2].head(5)
    expected = softmax(head)
    bounds = idl.certify(half, TEXT, layers=2, heads=5, queries=(3, 40), tolerance=0).table
    for query in (3, 40):
        weights = torch.tensor(bounds.filter(query=query)["weight"].to_list(), dtype=torch.float64)
        torch.testing.assert_close(weights, expected[query], atol=1e-12, rtol=0)
    found = idl.alternatives(half, TEXT, layers=2, heads=5, starts=1)
    raw = found.matrices["text0.layer2.head5.encoder.raw"]
    torch.testing.assert_close(raw, expected, atol=1e-12, rtol=0)
    assert found.table["output_error"].max() < 1e-8
    assert found.table["logit_rank"].drop_nulls().len() >= 2
    assert found.table["note"].to_list()[2].startswith("queries and keys of size 32 produce it")


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("family", ["bert", "llama", "gemma2"])
def test_every_study_of_heads_runs_in_half_precision(family, dtype):
    lens = idl.Lens(build(family).to(HALF[dtype]))
    text = {"input_ids": torch.arange(5, 29)[None]}
    captured = next(lens.capture(text, weights=True))
    found = idl.alternatives(lens, text, heads=1, realisable=True, starts=1, distance=0.02)
    bounds = idl.certify(lens, text, heads=1, queries=20, tolerance=0)
    for layer in range(2):
        expected, name = (
            softmax(captured.layers[layer].head(1)),
            f"layer{layer}.head1.{found.table['kind'][0]}",
        )
        torch.testing.assert_close(
            found.matrices[f"text0.{name}.raw"], expected, atol=1e-12, rtol=0
        )
        seen = bounds.table.filter(layer=layer)
        weights = torch.tensor(seen["weight"].to_list(), dtype=torch.float64)
        torch.testing.assert_close(weights, expected[20, seen["key"].to_list()], atol=1e-12, rtol=0)
    if family == "bert":
        assert idl.lab.logit_ranks(lens, text, count=2).table["original_rank"].max() <= 8


@pytest.mark.parametrize("dtype", [*HALF, "float32"])
def test_sinks_are_refused_however_small(dtype):
    model = build("gpt_oss").to(HALF.get(dtype, torch.float32))
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.data.fill_(-20.0)
    text = {"input_ids": torch.arange(5, 30)[None]}
    for study in (idl.certify, idl.alternatives):
        with pytest.raises(InputError, match="has an attention sink"):
            study(idl.Lens(model), text, layers=0, heads=0)


def test_an_audit_leaves_out_what_half_precision_hides(tmp_path):
    found = idl.audit(
        idl.Lens(build("gpt_oss").bfloat16()), {"input_ids": torch.arange(5, 30)[None]}
    )
    hidden = found.table["certain_rows"] == 0
    assert hidden.any(), "where the sinks' mass is no rounding"
    assert (hidden == found.table["certain_mass"].is_null()).all()
    assert found.to_html(tmp_path / "report.html").is_file()
