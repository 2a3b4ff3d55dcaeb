"""docs/recipes.md on TransformerLens; run by `make test-recipes` in an environment with it."""

import pytest
import torch

import identilens as idl
from identilens.models.bundled import resolved

bridge = pytest.importorskip(
    "transformer_lens.model_bridge",
    reason="make test-recipes installs transformer_lens in an environment of its own",
)
TEXT = "The ferry left the harbour before dawn, and nobody on the quay saw it go."


def recorded(model, cache):
    """The attention of a cache, layer by layer."""
    return [
        idl.RecordedLayer(
            query=cache["rot_q", layer][0].transpose(0, 1),
            key=cache["rot_k", layer][0].transpose(0, 1),
            value=cache["v", layer][0].transpose(0, 1),
            mixed=cache["z", layer][0],
            projection=block.attn.W_O.detach().flatten(0, 1),
            output=cache[f"blocks.{layer}.attn.hook_out"][0],
            layer=layer,
        )
        for layer, block in enumerate(model.blocks)
    ]


def booted():
    """The bundled decoder in TransformerLens."""
    return bridge.TransformerBridge.boot_transformers(
        str(resolved("bundled-decoder")), dtype=torch.float32
    )


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_a_cache_becomes_a_recording_with_the_tables_of_the_model(tmp_path):
    lens = idl.load("bundled-decoder")
    [item] = lens.read([TEXT])
    model = booted()
    _, cache = model.run_with_cache(item.tensors["input_ids"][None])
    layers = recorded(model, cache)
    idl.write_recording(tmp_path / "text.safetensors", layers, item.tokens["encoder"])
    recording = idl.load(tmp_path / "text.safetensors")
    found = idl.audit(recording, recording.texts, certain_rows=1).table
    expected = idl.audit(lens, [TEXT], certain_rows=1, effects="none").table
    for column in ("null_share", "certain_mass", "sink_mass"):
        assert (found[column] - expected[column]).abs().max() < 1e-5


# Warnings of the tool itself.
@pytest.mark.filterwarnings("ignore")
def test_induction_scores_of_a_cache_have_certificates(tmp_path):
    period, model = 24, booted()
    drawn = torch.randperm(4000, generator=torch.Generator().manual_seed(0))[:period]
    ids = torch.cat([drawn, drawn])
    _, cache = model.run_with_cache(ids[None])
    [item] = idl.load("bundled-decoder").read([ids.tolist()])
    idl.write_recording(
        tmp_path / "twice.safetensors", recorded(model, cache), item.tokens["encoder"]
    )
    recording = idl.load(tmp_path / "twice.safetensors")
    found = idl.patterns(
        recording, recording.texts, pattern="induction", rows=period, layers=(1, 2)
    )
    for row in found.table.iter_rows(named=True):
        pattern = cache["pattern", row["layer"]][0, row["head"]]
        score = float(pattern.diagonal(1 - period)[1:].mean())
        assert row["score"] == pytest.approx(score, abs=1e-4)
        assert row["lo"] <= row["score"] <= row["hi"]
    assert (found.table["hi"] - found.table["lo"]).max() > 1e-3
