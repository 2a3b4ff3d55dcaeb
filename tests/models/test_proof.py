"""The first batch of every run proves that capture is faithful, or names the check that fails."""

from dataclasses import replace
from itertools import product
from math import isnan

import pytest
import torch
import transformers as hf
from torch.testing import assert_close
from transformers.models.bert.modeling_bert import eager_attention_forward
from transformers.models.swin import modeling_swin

from helpers.zoo import (
    _BERT,
    _T5,
    _VIT,
    ALONE,
    BUILDERS,
    MORE,
    build,
    example,
    granite_swa,
    ids,
    swin,
)
from identilens.cli.selfcheck import proof
from identilens.errors import JoinedTextsError, UnsupportedModelError
from identilens.models import Lens
from identilens.models import proof as proofs
from identilens.models.capture import Lengths
from identilens.models.interface import AttentionCall
from identilens.models.outputs import deviation, relative

TEXTS = [ids(9), ids(6)]
PICTURES = {"pixel_values": torch.linspace(-2, 2, 2 * 3 * 12 * 12).reshape(2, 3, 12, 12).sin()}
FAMILIES = sorted(BUILDERS | MORE)
IN_DOUBLES = ("bert", "llama", "modernbert", "t5")
NAMES = {
    "attention calls are those found", "weights times values give the attention output",
    "captured attention is the model's own", "rows sum to 1, or to 1 less a sink", "hidden keys have no weight",
    "the module hands on the attention output", "heads add up to the block's output",
    "outputs unchanged by capture",
}  # fmt: skip


def implementations(model):
    return ["eager"] + ["sdpa"] * bool(model._supports_sdpa and model.config.model_type != "gemma2")


@pytest.mark.parametrize(
    ("family", "dtype"),
    [*product(FAMILIES, [torch.float32, torch.bfloat16]), *product(IN_DOUBLES, [torch.float64])],
)
def test_every_family_proves_itself_without_false_alarm(family, dtype):
    model = build(family).to(dtype)
    if dtype == torch.bfloat16 and family == "deepseek_v32":
        pytest.skip("it chooses keys by rank and asks for single precision: see test_unchanged")
    for implementation in implementations(model):
        model.set_attn_implementation(implementation)
        lens = Lens(model)
        batch = example(family)
        if dtype == torch.float64 and implementation == "eager":
            # There transformers masks with what is minus infinity to the softmax: padding of windows is NaN.
            batch = batch[:1] if isinstance(batch, list) else batch
        if isinstance(batch, dict):
            batch = {
                name: one.to(dtype) if one.is_floating_point() else one
                for name, one in batch.items()
            }
        if family in ALONE:
            batch = batch[:1]
        checks = lens.prove(lens.read(batch))
        assert {check.name for check in checks} >= NAMES
        failed = [check for check in checks if not check.passed]
        assert not failed, (implementation, failed)


SELFCHECKED = {
    "weights hardly matter": lambda: (hf.BertModel(hf.BertConfig(**_BERT)), TEXTS),
    "tuples among the outputs": lambda: (hf.DPRContextEncoder(hf.DPRConfig(**_BERT)), TEXTS),
    "positions in front of texts": lambda: (hf.MLCDVisionModel(hf.MLCDVisionConfig(**_VIT)), PICTURES),
    "masks of one row": lambda: (
        hf.SwitchTransformersForConditionalGeneration(hf.SwitchTransformersConfig(**_T5, num_experts=2)), TEXTS
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(SELFCHECKED))
def test_selfcheck_gives_no_false_alarm(kind):
    torch.manual_seed(0)
    model, batch = SELFCHECKED[kind]()
    checks = proof(Lens(model.eval()), batch)
    assert "outputs unchanged by capture" in {check.name for check in checks}
    assert all(check.passed for check in checks), checks


def passes(model):
    """Lengths of the batches that the model runs from now on."""
    seen = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    return seen


def test_the_proof_costs_two_passes_of_the_first_batch_of_each_kind():
    model = build("bert")
    lens, seen = Lens(model), passes(model)
    list(lens.capture([ids(9), ids(9, 1)]))
    assert seen == [8, 9, 9, 9, 9], (
        "without capture, with checks, one text alone; then the batch itself"
    )
    seen.clear()
    list(lens.capture([ids(9), ids(9, 1), ids(9, 2)], batch_size=2))
    assert seen == [9, 9, 9], "one text alone is another kind of batch"
    seen.clear()
    list(lens.capture([ids(9), ids(6)]))
    assert seen == [9, 9, 6, 9], "a batch with padding proves what one without could not"
    seen.clear()
    list(lens.capture([ids(9), ids(6)]))
    assert seen == [9]
    with torch.no_grad():
        model.encoder.layer[0].attention.self.value.weight.mul_(2)
    seen.clear()
    list(lens.capture([ids(9), ids(6)]))
    assert seen == [8, 9, 9, 6, 9], "other weights are another model"
    seen.clear()
    list(lens.capture([ids(20), ids(9)]))
    assert seen == [20, 20, 9, 20], "longer texts are proven again: a limit may lie between"


def test_an_output_changed_behind_the_values_is_refused(monkeypatch):
    def halved(*args, **kwargs):
        output, weights = eager_attention_forward(*args, **kwargs)
        return output / 2, weights

    monkeypatch.setattr("transformers.models.bert.modeling_bert.eager_attention_forward", halved)
    lens = Lens(build("bert"))
    with pytest.raises(UnsupportedModelError, match="BertSelf"):
        next(lens.capture([ids(9)]))
    failed = next(check.name for check in proof(lens, TEXTS) if not check.passed)
    assert failed.startswith("weights times values")


def test_sinks_applied_to_the_output_are_taken_into_the_weights():
    model = granite_swa()
    for number, layer in enumerate(next(Lens(model).capture([ids(9)], weights=True)).layers):
        keys = layer.keys.repeat_interleave(2, 0)
        logits = (layer.queries @ keys.mT * layer.scaling).masked_fill(~layer.visible, -torch.inf)
        sinks = model.model.layers[number].self_attn.sinks.detach()[:, None, None].expand(-1, 9, 1)
        expected = torch.cat([logits, sinks], -1).softmax(-1)[..., :-1]
        assert float(expected.sum(-1).min()) < 0.9
        assert_close(layer.weights, expected, atol=1e-5, rtol=1e-4)


def test_windows_of_another_text_are_found_out(monkeypatch):
    """Windows that the model orders by place and not by text would be another text's, so texts run alone."""
    partition, reverse = modeling_swin.window_partition, modeling_swin.window_reverse

    def by_place(pictures, size):
        return (
            partition(pictures, size)
            .unflatten(0, (len(pictures), -1))
            .transpose(0, 1)
            .flatten(0, 1)
        )

    def back(windows, size, height, width):
        count = (height // size) * (width // size)
        return reverse(
            windows.unflatten(0, (count, -1)).transpose(0, 1).flatten(0, 1), size, height, width
        )

    batch = {"pixel_values": torch.randn(2, 3, 16, 16)}
    next(Lens(swin()).capture(batch))
    monkeypatch.setattr(modeling_swin, "window_partition", by_place)
    monkeypatch.setattr(modeling_swin, "window_reverse", back)
    lens = Lens(swin())
    with pytest.raises(JoinedTextsError, match="failed"):
        lens.prove_once(lens.read(batch))
    together = list(lens.capture(batch, weights=True))
    alone = lens.capture({"pixel_values": batch["pixel_values"][1:]}, weights=True)
    assert torch.equal(together[1].layers[0].weights, next(alone).layers[0].weights)


def test_a_model_that_hides_every_key_and_computes_nan_is_refused():
    """Its mask is minus infinity everywhere, which a capture reads as the least number of all keys."""

    class Blind(hf.BertModel):
        def forward(self, input_ids, **given):
            mask = torch.full((len(input_ids), 1, *[input_ids.shape[1]] * 2), -torch.inf)
            return super().forward(input_ids, **{**given, "attention_mask": mask})

    torch.manual_seed(0)
    lens = Lens(Blind(hf.BertConfig(**_BERT, attn_implementation="eager")).eval())
    with pytest.raises(UnsupportedModelError, match="infinity"):
        next(lens.capture([[5, 6, 7]], weights=True))


@pytest.mark.parametrize("run", ["a row of one layer", "the keys that are seen", "a head's block"])
def test_drawn_rows_find_what_all_rows_find(monkeypatch, run):
    """Where a twentieth of the rows is checked, what is wrong in the middle of a text is found, too."""
    monkeypatch.setattr(proofs, "_ENTRIES", 0)
    monkeypatch.setattr(proofs, "_DRAWN", 0)
    lens = Lens(build("gpt2"))
    items = lens.read([ids(40)])
    sites, cut = lens.sites(items[0]), AttentionCall.rows

    def forged(call, rows):
        part = cut(call, rows)
        if run == "the keys that are seen":
            return replace(part, mask=None, original=part.eager)
        middle = torch.tensor([10 < row < 30 for row in rows])

        def flipped(*given, **options):
            output, weights = part.eager(*given, **options)
            return output, torch.where(middle[:, None], weights.flip(-1), weights)

        return replace(part, eager=flipped)

    if run == "a head's block":
        projection = sites[1].projection
        projection.register_forward_hook(lambda _, args, output: output + args[0].roll(1, 1))
    else:
        monkeypatch.setattr(AttentionCall, "rows", forged)
    with pytest.raises(UnsupportedModelError, match="failed with"):
        lens.prove_once(items)


def test_the_largest_difference_over_the_largest_expected_entry():
    expected = torch.tensor([1.0, -4.0, 2.0])
    assert relative(torch.tensor([1.0, -4.0, 3.0]), expected) == 0.25
    assert relative(torch.tensor([1.5, -6.0, 2.0]), expected) == 0.5
    assert relative(expected, expected) == 0
    assert relative(torch.ones(2), torch.zeros(2)) == pytest.approx(1e12)
    assert relative(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
    # Logits of tokens that are not allowed agree where both are infinite, and do not hide the others.
    masked = torch.tensor([-torch.inf, 4.0])
    assert relative(masked, masked) == 0
    assert relative(torch.tensor([-torch.inf, 3.0]), masked) == 0.25
    assert relative(torch.tensor([2.0, 4.0]), masked) == torch.inf


@pytest.mark.parametrize("first", [0.0, 0.5])
def test_what_is_no_number_never_agrees(first):
    [item] = Lens(build("bert")).read([ids(3)])
    lengths = Lengths([item])
    plain = {"a": torch.ones(1, 3), "b": torch.ones(1, 3), "c": torch.ones(1, 3)}
    broken = torch.tensor([[1.0, torch.nan, 1.0]])
    changed = plain | {"a": plain["a"] + first, "b": broken}
    assert isnan(deviation(plain, changed, lengths, [item]))
    assert isnan(deviation(changed, plain, lengths, [item]))
    assert isnan(deviation(changed, changed, lengths, [item]))


def test_padding_is_not_compared_and_the_worst_tensor_counts():
    items = Lens(build("bert")).read([ids(3), ids(2, 1)])
    lengths = Lengths(items)
    states, pooled = torch.ones(2, 3, 4), torch.ones(2, 4)
    plain = {"states": states, "more": (states,), "pooled": pooled, "attentions": states}
    assert deviation(plain, plain, lengths, items) == 0
    padded, inside = states.clone(), states.clone()
    padded[1, 2] = 9
    inside[1, 1] = 1.5
    assert deviation(plain, plain | {"states": padded}, lengths, items) == 0
    assert deviation(plain, plain | {"more": (inside,)}, lengths, items) == 0.5
    without = {name: one for name, one in plain.items() if name != "attentions"}
    assert deviation(plain, without, lengths, items) == 0
    # Of texts of several lengths in a batch, what has no positions may depend on the padding.
    assert deviation(plain, plain | {"pooled": 3 * pooled}, lengths, items) == 0
    same = Lens(build("bert")).read([ids(3), ids(3, 1)])
    changed = plain | {"pooled": 3 * pooled}
    assert deviation(plain, changed, Lengths(same), same) == 2
    [alone] = [items[:1]]
    assert (
        deviation({"one": torch.ones(())}, {"one": torch.tensor(1.25)}, Lengths(alone), alone)
        == 0.25
    )
