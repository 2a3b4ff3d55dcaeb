"""Alternatives of texts: other weights, the same model output, measured by running it."""

import polars as pl
import pytest
import torch

import identilens as idl
from helpers import zoo
from identilens.measures.attention import certain_mass
from identilens.studies.alternatives.result import Alternatives

# 45, 64 and 88 tokens of the bundled encoder.
TEXTS = [
    "A keeper of bees told the council that the hives along the canal had gone quiet in a single week, and that "
    "neither the frost nor the mites he had counted could explain what he found there on the boards.",
    "The river had risen during the night, and by morning the lower meadow lay under a sheet of brown water in which "
    "the fence posts stood like the teeth of a broken comb. Nobody in the village was surprised, because the old "
    "people had said for weeks that the ice in the hills would go at once.",
    "When the last train had left, the porter swept the platform from one end to the other, slowly, as he had done for "
    "thirty years, and put the paper cups into one bag and the tickets into another. He read the tickets first. Most "
    "of them were for the coast, some for the capital, and once in a long while there was one for a station that he "
    "had never heard of and could not find on the map behind the counter.",
]


LAYERS = (2,)


@pytest.fixture(scope="module")
def whole(bundled):
    return idl.alternatives(bundled, TEXTS, layers=LAYERS, heads=5, starts=2)


def test_put_back_they_change_nothing_though_they_lie_far_away(whole, bundled):
    lengths = [item.length for item in bundled.read(TEXTS)]
    assert all(40 <= length <= 120 for length in lengths)
    assert dict(whole.table.schema) == Alternatives.schema["table"]
    far = whole.table.filter(alternative="far")
    assert len(far) == 3 * len(LAYERS)
    assert far["hidden_change"].max() < 1e-4
    assert far["output_error"].max() < 1e-8
    for (text,), rows in far.group_by("text"):
        assert (rows["simplex_nullity"] == lengths[text] - 33).all()
        if lengths[text] > 60:
            assert rows["mean_total_variation"].min() > 0.1
    assert (far["distance_bound"] >= far["mean_total_variation"] - 1e-9).all()
    assert (far["distance_bound"] <= 1).all()
    assert whole.table.filter(pl.col("alternative") != "far")["distance_bound"].is_null().all()


def test_the_bound_of_a_small_head_is_one_minus_its_certain_mass():
    lens, text = idl.Lens(zoo.build("bert")), zoo.ids(12)
    table = idl.alternatives(lens, [text], layers=0, heads=1, starts=1).table
    head = lens.layer(lens.read([text])[0], 0).head(1)
    far = table.filter(alternative="far").row(0, named=True)
    expected = 1 - float(certain_mass(head.attention, head.projected).mean())
    assert far["distance_bound"] == pytest.approx(expected)
    assert 0.01 < far["mean_total_variation"] <= far["largest_total_variation"] < 1
    assert far["mean_total_variation"] <= far["distance_bound"] + 1e-9
    assert table.filter(pl.col("alternative") != "far")["distance_bound"].is_null().all()


def test_matrices_are_distributions_with_the_same_output(whole, bundled):
    head, prefix = bundled.layer(bundled.read(TEXTS)[0], 2).head(5), "text0.layer2.head5.encoder"
    raw, T = whole.matrices[f"{prefix}.raw"], head.values.double() @ head.output_projection.double()
    assert torch.allclose(raw, head.weights.double(), atol=1e-6)
    for name in ("sampled", "far"):
        other = whole.matrices[f"{prefix}.alternative_{name}"]
        assert other.min() >= -1e-12
        assert torch.allclose(other.sum(-1), raw.sum(-1), atol=1e-9)
        assert torch.allclose(other @ T, raw @ T, atol=1e-5)
    assert whole.tokens[0]["encoder"][0] == "[CLS]"


def test_other_queries_and_keys_of_the_head(bundled):
    found = idl.alternatives(bundled, TEXTS[1], layers=2, heads=5, realisable=True, starts=1)
    row = found.table.filter(alternative="realisable").row(0, named=True)
    assert row["dimension"] == row["formula"] == row["n_key"] * (2 * 32 - 32) - 32 * 32 - 32
    assert row["mean_total_variation"] > 0.1
    assert row["hidden_change"] < 1e-4
    assert row["logit_rank"] <= 32
    assert {"queries_realisable", "keys_realisable"} <= {
        key.rsplit(".", 1)[-1] for key in found.matrices
    }


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5", "bart"])
def test_masked_grouped_and_cross_attention(family):
    lens = idl.Lens(zoo.build(family))
    ids = torch.arange(5, 29)
    batch = {
        "input_ids": ids[None],
        **({"decoder_input_ids": ids[None, :20]} if family in ("t5", "bart") else {}),
    }
    distance = 0.01 if family == "llama" else 0.05
    found = idl.alternatives(
        lens, batch, layers=1, heads=2, realisable=True, starts=1, distance=distance
    )
    kinds = {"encoder", "decoder", "cross"} if family in ("t5", "bart") else {"decoder"}
    assert set(found.table["kind"]) == kinds
    assert found.solved["hidden_change"].max() < 1e-4
    assert found.solved["output_error"].max() < 1e-5
    far = found.table.filter(alternative="far")
    assert (far.filter(pl.col("simplex_nullity") > 5)["mean_total_variation"] > 0.03).all()
    realisable = found.table.filter(alternative="realisable")
    if family == "llama":
        assert (
            realisable["note"]
            .item()
            .startswith("its keys serve 2 query heads: all of them take new ones")
        )
        assert realisable["dimension"].item() == realisable["formula"].item() > 0
    if family in ("llama", "gpt2"):
        assert realisable["mean_total_variation"].item() > 0.8 * distance
        assert found.table["loss_change"].drop_nulls().max() < 1e-4


def test_identifiable_attention_is_left_where_it_is(bundled):
    found = idl.alternatives(bundled, "A short one.", layers=0, heads=0)
    assert (found.table["simplex_nullity"] == 0).all()
    assert found.solved["mean_total_variation"].max() < 1e-6
    assert found.summary().numbers["free_maps"] == 0
    # A row that attends to one key alone cannot change, whatever the null space.
    model = zoo.build("bert")
    model.encoder.layer[0].attention.self.query.weight.data.mul_(1e5)
    found = idl.alternatives(idl.Lens(model), [zoo.ids(20)], layers=0)
    assert found.table["simplex_nullity"].min() > 0
    assert found.summary().numbers["free_maps"] == 0
