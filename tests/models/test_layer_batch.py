"""A layer's attention on some texts, block by block, beside the family's own weights and plain products."""

import pytest
import torch
import transformers as hf
from torch.testing import assert_close

from helpers.zoo import ids
from identilens.errors import NumericalError
from identilens.linalg import OutputFactor, memory
from identilens.models.layer_batch import LayerBatch
from identilens.models.lens import Lens

N = 20
SIZES = {
    "vocab_size": 96, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2,
}  # fmt: skip


def lens_of(family, dtype=torch.float32, attention="sdpa"):
    torch.manual_seed(0)
    if family == "bert":
        model = hf.BertModel(hf.BertConfig(**SIZES, attn_implementation=attention))
    else:
        config = hf.LlamaConfig(**SIZES, num_key_value_heads=1, attn_implementation=attention)
        model = hf.LlamaModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    return Lens(model.to(dtype).eval())


def taken(lens, look, **options):
    """Run two texts, make a batch of the layer, and look at it inside the call."""
    items = lens.read([ids(N), ids(N, 1)])
    [site] = lens.sites(items[0])
    seen = []

    def answer(call):
        side = torch.nn.functional.one_hot(torch.arange(N) % 3, 3).double()
        given = {"value_bias": None, "keeps_maps": False} | options
        batch = LayerBatch(
            [3, 5], [site], [call], OutputFactor.of(site.output_projection), ([side] * 2, [side] * 2), **given
        )  # fmt: skip
        seen.append(look(batch, call, site))
        return call.run()

    lens.run(items, answer)
    return seen[0]


def blocks_are_right(batch, call, site):
    weights = call.attend()[1]
    values = call.value.double().repeat_interleave(2 // call.value.shape[1], 1)
    T = values @ site.output_projection.double()
    assert_close(
        batch.projector.compact.norm(dim=-1), T.norm(dim=-1).flatten(0, 1), atol=1e-5, rtol=1e-5
    )
    lower = OutputFactor.of(site.output_projection).lower
    outputs = (weights.double() @ values @ lower).flatten(0, 1)
    covered = torch.zeros(N)
    for block in batch.blocks():
        covered[block.rows] += 1
        given = weights.flatten(0, 1)[:, block.rows]
        assert_close(block.weights, given, atol=1e-6, rtol=0)
        assert_close(block.outputs, outputs[:, block.rows], atol=1e-4, rtol=1e-5)
    assert bool((covered == 1).all())
    return len(batch.projector.white)


@pytest.mark.parametrize("held", [1, 2**25])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(("family", "spaces"), [("llama", 2), ("bert", 4)])
def test_blocks_are_the_familys_attention(family, spaces, attention, held, monkeypatch):
    monkeypatch.setattr(memory, "PROCESSOR_BYTES", held)
    assert taken(lens_of(family, attention=attention), blocks_are_right) == spaces


def test_half_precision_is_computed_again_from_queries_and_keys():
    def look(batch, call, site):
        whole = call.query.float() @ call.key.float().mT * 4**-0.5
        exact = whole.softmax(-1).flatten(0, 1)
        for block in batch.blocks():
            assert block.weights.dtype == torch.float64
            given = exact[:, block.rows].double()
            assert_close(block.weights, given, atol=1e-5, rtol=0)
        return batch

    assert taken(lens_of("bert", torch.bfloat16), look).unproven(0) == set()


def test_biases_are_taken_out_of_values_and_outputs():
    def look(batch, call, site):
        values = call.value.double() - site.value_bias.double()[:, None]
        lengths = (values @ site.output_projection.double()).norm(dim=-1).flatten(0, 1)
        assert_close(batch.projector.compact.norm(dim=-1), lengths, atol=1e-5, rtol=1e-5)
        outputs = call.attend()[0].transpose(1, 2).double() - site.value_bias.double()[:, None]
        lower = OutputFactor.of(site.output_projection).lower
        given = outputs.flatten(0, 1) @ lower.repeat(2, 1, 1)
        for block in batch.blocks():
            assert_close(block.outputs, given[:, block.rows], atol=1e-4, rtol=1e-4)
        return block.rows.stop

    lens = lens_of("bert")
    [site] = lens.sites(lens.read([ids(N)])[0])
    assert taken(lens, look, value_bias=site.value_bias[None]) == N


def test_what_is_not_finite_is_named():
    def look(batch, call, site):
        sizes = torch.ones(4, 3)
        batch.require_finite(sizes, "output")
        sizes[3, 1] = torch.inf
        with pytest.raises(NumericalError, match="attention"):
            batch.require_finite(sizes, "output")
        sizes[0, 0] = torch.nan
        with pytest.raises(NumericalError, match="attention"):
            batch.require_finite(sizes, "values")
        # Each text's sum is finite, and both together are not.
        large = torch.zeros(4, 1)
        large[0], large[2] = 3e38, 3e38
        with pytest.raises(NumericalError, match="text 3, encoder"):
            batch.require_finite(large, "values")
        return True

    assert taken(lens_of("bert"), look)
