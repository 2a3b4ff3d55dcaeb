"""docs/recipes.md on interp-engine; run by `make test-recipes` in an environment with it."""

import pytest

import identilens as idl
from identilens.models.bundled import resolved

engine = pytest.importorskip(
    "interp_engine", reason="make test-recipes installs interp_engine in an environment of its own"
)
TEXT = "The ferry left the harbour before dawn, and nobody on the quay saw it go."


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_a_capture_becomes_a_recording_with_the_tables_of_the_model(tmp_path):
    lens = idl.load("bundled-decoder")
    [item] = lens.read([TEXT])
    model = engine.load_model(str(resolved("bundled-decoder")), backend="eager", dtype="float32")
    points = ("value", "attn_probs", "z", "attn_out")
    numbers = range(model.n_layers)
    asked = [engine.Address(name, number) for number in numbers for name in points]
    cache = engine.capture(model, item.tensors["input_ids"][None], asked)
    layers = []
    for number in numbers:
        value, weights, mixed, output = (cache[engine.Address(one, number)][0] for one in points)
        projection, _ = model.resolve_point("z", number)
        layers.append(
            idl.RecordedLayer(
                value=value.unflatten(-1, (model.n_kv_heads, -1)).transpose(0, 1),
                mixed=mixed.unflatten(-1, (model.n_heads, -1)),
                weights=weights,
                projection=projection.weight.detach().T,
                output=output,
                layer=number,
            )
        )
    idl.write_recording(tmp_path / "text.safetensors", layers, item.tokens["encoder"])
    recording = idl.load(tmp_path / "text.safetensors")
    found = idl.audit(recording, recording.texts, certain_rows=1).table
    expected = idl.audit(lens, [TEXT], certain_rows=1, effects="none").table
    for column in ("null_share", "certain_mass", "sink_mass"):
        assert (found[column] - expected[column]).abs().max() < 1e-5
