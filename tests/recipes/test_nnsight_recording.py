"""docs/recipes.md on recordings from nnsight; run by `make test-recipes` in an environment with it."""

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids

nnsight = pytest.importorskip(
    "nnsight", reason="make test-recipes installs nnsight in an environment of its own"
)


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["llama", "gpt_oss"])
def test_a_trace_becomes_a_recording_with_the_tables_of_the_model(family, tmp_path):
    model, given = build(family), ids(24)
    model.set_attn_implementation("eager")
    lens = idl.Lens(model)
    expected = idl.audit(lens, [given], certain_rows=1, effects="none").table
    traced, seen = nnsight.NNsight(model), []
    with traced.trace(torch.tensor([given])):
        for block in traced.model.layers:
            attention = block.self_attn
            value, mixed = attention.v_proj.output.save(), attention.o_proj.input.save()
            output, weights = attention.o_proj.output.save(), attention.output[1].save()
            seen.append((value, mixed, output, weights))
    d_v = seen[0][1].shape[-1] // model.config.num_attention_heads
    layers = [
        idl.RecordedLayer(
            value=value[0].detach().unflatten(-1, (-1, d_v)).transpose(0, 1),
            mixed=mixed[0].detach().unflatten(-1, (-1, d_v)),
            weights=weights[0].detach(),
            sink=family == "gpt_oss",
            projection=block.self_attn.o_proj.weight.detach().T,
            bias=None
            if block.self_attn.o_proj.bias is None
            else block.self_attn.o_proj.bias.detach(),
            output=output[0].detach(),
            mask=lens_mask(lens, given, number),
            layer=number,
        )
        for number, (block, (value, mixed, output, weights)) in enumerate(
            zip(model.model.layers, seen, strict=True)
        )
    ]
    idl.write_recording(tmp_path / "text.safetensors", layers, [str(one) for one in given])
    recording = idl.load(tmp_path / "text.safetensors")
    found = idl.audit(recording, recording.texts, certain_rows=1).table
    for column in ("rank", "null_share", "certain_mass", "sink_mass"):
        assert (found[column] - expected[column]).abs().max() < 1e-5


def lens_mask(lens, given, layer):
    """Return which keys each query sees: windows of some layers of gpt-oss."""
    seen = next(lens.capture([given])).layers[layer].visible
    return "full" if seen is None else seen
