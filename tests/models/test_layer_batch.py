"""A layer's attention on some texts, block by block, beside the family's own weights and plain products."""

import pytest
import torch
import transformers as hf

from helpers.zoo import ids
from identilens.errors import NumericalError
from identilens.linalg.compact import OutputFactor
from identilens.models.fused import Scratch, is_fused
from identilens.models.layer_batch import LayerBatch
from identilens.models.lens import Lens

N = 20
SIZES = {
    "vocab_size": 96,
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


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
        given = {"value_bias": None, "keeps_maps": False, "step": 7, "scratch": Scratch()} | options
        batch = LayerBatch(
            [3, 5], site, call, OutputFactor.of(site.output_projection), ([side] * 2, [side] * 2), **given
        )  # fmt: skip
        seen.append(look(batch, call, site))
        return call.run()

    lens.run(items, answer)
    return seen[0]


def blocks_are_right(batch, call, site, accuracy=1e-5):
    output, weights = call.attend()
    weights = weights.double().flatten(0, 1)
    values = call.value.double().repeat_interleave(2 // call.value.shape[1], 1)
    T = values @ site.output_projection.double()
    lengths = T.norm(dim=-1).flatten(0, 1)
    torch.testing.assert_close(batch.lengths().double(), lengths, atol=accuracy, rtol=accuracy)
    types = torch.nn.functional.one_hot(torch.arange(N) % 3, 3).double()
    outputs = (weights.unflatten(0, (2, 2)) @ values).flatten(0, 1) @ batch.factor.lower.repeat(
        2, 1, 1
    )
    covered = torch.zeros(4, N)
    for block in batch.blocks():
        heads, rows = block.heads, block.rows
        covered[heads, rows] += 1
        width = block.weights.shape[-1]
        expected = weights[heads, rows]
        torch.testing.assert_close(
            block.weights.double(), expected[..., :width], atol=accuracy, rtol=0
        )
        assert not bool(expected[..., width:].any())
        norms = (expected * lengths[heads, None]).sum(-1)
        torch.testing.assert_close(block.norms.double(), norms, atol=accuracy, rtol=accuracy)
        torch.testing.assert_close(block.by_type.double(), expected @ types, atol=accuracy, rtol=0)
        some = slice(None) if block.places is None else block.places
        given = outputs[heads, rows][:, some]
        torch.testing.assert_close(block.outputs.double(), given, atol=10 * accuracy, rtol=accuracy)
        if block.back is not None:
            found = batch.projector.sums(
                rows, block.weights, block.by_type, batch.key_types, heads=heads, back=block.back
            )
            block.rebuilt = found.rebuilt[..., block.outputs.shape[-1] :]
    assert bool((covered == 1).all())
    torch.testing.assert_close(batch.output, output, atol=10 * accuracy, rtol=accuracy)
    return batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_causal_rows_end_at_their_own_key(attention):
    batch = taken(lens_of("llama", attention=attention), blocks_are_right)
    assert batch._is_causal
    assert not batch._spans
    assert not taken(lens_of("llama"), blocks_are_right, keeps_maps=True)._is_causal


def test_eager_attention_gives_its_own_weights():
    batch = taken(lens_of("bert", attention="eager"), blocks_are_right)
    assert not batch._spans


def test_half_precision_is_computed_again_from_queries_and_keys():
    def look(batch, call, site):
        whole = call.query.float() @ call.key.float().mT * 4**-0.5
        exact = whole.softmax(-1).flatten(0, 1)
        for block in batch.blocks():
            assert block.weights.dtype == torch.float32
            torch.testing.assert_close(
                block.weights, exact[block.heads, block.rows], atol=1e-5, rtol=0
            )
            types = torch.nn.functional.one_hot(torch.arange(N) % 3, 3).float()
            torch.testing.assert_close(
                block.by_type, exact[block.heads, block.rows] @ types, atol=1e-5, rtol=0
            )
        return batch

    assert taken(lens_of("bert", torch.bfloat16), look).unproven == set()


def test_biases_are_taken_out_of_values_and_outputs():
    def look(batch, call, site):
        values = call.value.double() - site.value_bias.double()[:, None]
        lengths = (values @ site.output_projection.double()).norm(dim=-1).flatten(0, 1)
        torch.testing.assert_close(batch.lengths().double(), lengths, atol=1e-5, rtol=1e-5)
        outputs = call.attend()[0].transpose(1, 2).double() - site.value_bias.double()[:, None]
        given = outputs.flatten(0, 1) @ batch.factor.lower.repeat(2, 1, 1)
        for block in batch.blocks():
            torch.testing.assert_close(
                block.outputs.double(), given[block.heads, block.rows], atol=1e-4, rtol=1e-4
            )
        return batch

    lens = lens_of("bert")
    [site] = lens.sites(lens.read([ids(N)])[0])
    assert not taken(lens, look, value_bias=site.value_bias)._spans


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
        return is_fused(call, torch.float32), is_fused(call, torch.float64)

    assert taken(lens_of("bert"), look) == (True, False)


def test_memory_is_used_again_while_it_is_large_enough():
    scratch, like = Scratch(), torch.zeros(1)
    first = scratch.take((2, 3), like)
    assert scratch.take((5,), like).data_ptr() == first.data_ptr()
    assert scratch.take((6,), like).data_ptr() == first.data_ptr()
    assert scratch.take((7,), like).shape == (7,)
    assert scratch.take((2,), like.double()).dtype == torch.float64
