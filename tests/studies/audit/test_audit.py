"""The audit's table against a plain reference on real and tiny models, streaming, matrices."""

import math
from collections import defaultdict

import polars as pl
import pytest
import torch
import transformers as hf
from torch.testing import assert_close

import identilens as idl
from helpers import zoo
from helpers.heads import TEXTS, seen_of
from helpers.reference import effective_svd, rank_svd, with_sink
from helpers.zoo import BUILDERS, build, example, ids
from identilens.errors import NumericalError
from identilens.linalg import memory
from identilens.models import Lens
from identilens.studies.audit.result import Audit


def reference_rows(lens, inputs):
    """Every row of the table by plain definitions, a decomposition for each row of masked heads."""
    rows = {}
    for index, text in enumerate(lens.capture(inputs, weights=True)):
        outputs = defaultdict(list)
        for head in text.heads:
            T = head.values.double() @ head.output_projection.double()
            weights, T, seen = with_sink(head, T)
            effective = effective_svd(weights, T, seen)
            last = T[seen[-1]]
            rank = rank_svd(last)
            pair = torch.stack([weights[seen], effective[seen]])
            norms = weights * torch.linalg.vector_norm(T, dim=-1)
            outputs[head.layer, head.kind].append(torch.linalg.vector_norm(weights @ T, dim=-1))
            rows[index, head.layer, head.head, head.kind] = {
                "n_query": len(weights),
                "n_key": len(T) - head.sink,
                "simplex_nullity": len(last) - 1 - rank_svd(last - last.mean(0)),
                "learned_sink": float(weights[:, -1].mean()) if head.sink else 0.0,
                "rank": rank,
                "nullity": len(last) - rank,
                "null_share": float((weights - effective).square().sum() / weights.square().sum()),
                "pearson": float(torch.corrcoef(pair)[0, 1]) if pair.shape[1] > 1 else math.nan,
                "simplex_null_share": simplex_null_share(weights, T, seen),
                "first_mass": float(weights[:, 0].mean()),
                "received": weights.mean(0),
                "norm_shares": (norms / norms.sum(-1, keepdim=True)).mean(0),
                "value_norms": torch.linalg.vector_norm(T, dim=-1)
                / head_median(T[: len(T) - head.sink]),
            }
        for (layer, kind), sizes in outputs.items():
            for head, share in enumerate((torch.stack(sizes) / torch.stack(sizes).sum(0)).mean(-1)):
                rows[index, layer, head, kind]["output_share"] = float(share)
    return rows


def head_median(T):
    """The median norm of the projected values."""
    return torch.linalg.vector_norm(T, dim=-1).quantile(0.5)


def simplex_null_share(weights, T, seen):
    """The squared share of weights in LN([T, 1]), row by row."""
    free = 0.0
    for row, keys in zip(weights, seen, strict=True):
        effective = effective_svd(row[keys][None], T[keys])[0]
        ones = effective_svd(torch.ones(1, int(keys.sum()), dtype=T.dtype), T[keys])[0]
        null, outside = row[keys] - effective, 1 - ones
        size = float(outside @ outside)
        along = float(null @ outside) ** 2 / size if size > 1e-9 * len(ones) else 0.0
        free += float(null @ null) - along
    return free / float(weights.square().sum())


@pytest.mark.parametrize("family", [*sorted(BUILDERS), "bundled"])
def test_table_agrees_with_the_plain_reference(family, bundled):
    lens = bundled if family == "bundled" else Lens(build(family))
    inputs = TEXTS if family == "bundled" else example(family)
    table = idl.audit(lens, inputs, certain_rows=0, effects="none").table
    reference = reference_rows(lens, inputs)
    assert dict(table.schema) == Audit.schema["table"]
    assert len(table) == len(reference)
    for row in table.iter_rows(named=True):
        expected = reference[row["text"], row["layer"], row["head"], row["kind"]]
        for name in ("n_query", "n_key", "rank", "nullity", "simplex_nullity"):
            assert row[name] == expected[name]
        assert row["null_share"] == pytest.approx(expected["null_share"], abs=1e-5)
        if row["pearson"] is not None and not math.isnan(expected["pearson"]):
            assert row["pearson"] == pytest.approx(expected["pearson"], abs=1e-4)
        assert row["reconstruction_error"] < 1e-5
        for name in ("simplex_null_share", "first_mass", "learned_sink", "output_share"):
            assert row[name] == pytest.approx(expected[name], abs=1e-5), name
        sink = row["sink"]
        assert row["sink_mass"] == pytest.approx(float(expected["received"][sink]), abs=1e-6)
        assert row["sink_mass"] >= row["first_mass"] - 1e-6, "the first token may be a sink, too"
        assert row["sink_norm_share"] == pytest.approx(
            float(expected["norm_shares"][sink]), abs=1e-5
        )
        assert row["sink_value_norm"] == pytest.approx(
            float(expected["value_norms"][sink]), rel=1e-4
        )
    assert table["pearson"].null_count() < len(table)


def test_a_row_that_is_determined_has_certain_mass_one_also_with_a_learned_sink():
    audit = idl.audit(Lens(build("gpt_oss")), [ids(3, 1)], certain_rows=3, examples=0)
    assert audit.table["learned_sink"].max() > 0.1
    assert audit.table["simplex_nullity"].to_list() == [0] * len(audit.table)
    assert audit.rows["certain_mass"].to_list() == pytest.approx([1] * len(audit.rows), abs=1e-9)


def test_every_column_of_a_half_precision_model_rests_on_weights_computed_again(bundled_path):
    lens = idl.load(bundled_path, dtype="bfloat16", device="cpu")
    audit = idl.audit(lens, TEXTS[:1], examples=0, certain_rows=0, layers=[0])
    reference = reference_rows(lens, TEXTS[:1])
    for row in audit.table.iter_rows(named=True):
        expected = reference[0, 0, row["head"], "encoder"]
        for name in ("null_share", "simplex_null_share", "first_mass", "pearson"):
            assert row[name] == pytest.approx(expected[name], abs=2e-6), name


@pytest.mark.parametrize(("heads", "width", "trading"), [(4, 16, True), (2, 16, False)])
def test_heads_that_trade_are_told(heads, width, trading):
    config = hf.Qwen3Config(
        hidden_size=32, num_attention_heads=heads, num_key_value_heads=2, head_dim=width, num_hidden_layers=2,
        intermediate_size=32, vocab_size=64,
    )  # fmt: skip
    audit = idl.audit(Lens(hf.Qwen3Model(config).eval()), [list(range(3, 15))], certain_rows=1)
    assert set(audit.table["stacked_rank"]) == {32}
    said = " ".join(audit.sections()[0].text)
    assert ("In 2 of 2 layers heads can trade" in said) == trading
    assert ("rank 32, of 64 at most" in said) == trading
    assert ("fixes the output of each head" in said) == (not trading)


def test_the_stacked_rank_counts_equal_projections_of_two_heads_once_also_if_they_became_so():
    lens = Lens(build("bert"))
    assert lens.sites([ids(9)])[0].stacked_rank == 32
    for layer in lens.model.encoder.layer:
        weight = layer.attention.output.dense.weight.data
        weight[:, 8:16] = weight[:, :8]
    audit = idl.audit(lens, [ids(9)], certain_rows=1)
    assert set(audit.table["stacked_rank"]) == {24}
    assert audit.summary().numbers["stacked_size"] == 32


def test_weak_directions_of_stored_weights_count_and_their_rounding_does_not(bundled):
    """The weakest direction of layer 5 is 1.2e-5 of the strongest: heads nearly trade there, but not exactly."""
    audit = idl.audit(bundled, TEXTS[1:2], certain_rows=1)
    assert set(audit.table["stacked_rank"]) == {384}
    assert audit.summary().numbers["full"] == 6


@pytest.mark.parametrize("held", [1, 2**25])
@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "gpt_oss", "t5"])
def test_maps_of_long_texts_are_kept_as_means_over_blocks(family, held, monkeypatch):
    lens = Lens(build(family))
    monkeypatch.setattr("identilens.measures.attention.layer.BLOCKS", 7)
    monkeypatch.setattr(memory, "PROCESSOR_BYTES", held)
    monkeypatch.setattr("identilens.models.layer_batch.LARGE", held)
    options = {"certain_rows": 0, "effects": "none"}
    found = idl.audit(lens, [ids(40, 1)], example_length=39, **options)
    whole = idl.audit(lens, [ids(40, 1)], **options)
    assert set(found.tokens) == {0}
    raw = [name for name in whole.matrices if name.endswith(".raw")]
    assert {f"{name[:-4]}.means" for name in raw} == set(found.matrices)
    for name in raw:
        weights, means = whole.matrices[name], found.matrices[f"{name[:-4]}.means"]
        blocks = [torch.arange(size) * min(7, size) // size for size in weights.shape]
        for row, column in ((0, 0), (len(means) - 1, 0), (len(means) // 2, means.shape[1] // 2)):
            expected = weights[blocks[0] == row][:, blocks[1] == column].sum(-1).mean()
            assert float(means[row, column]) == pytest.approx(float(expected), abs=1e-5)
    [section] = [one for one in found.sections() if one.anchor == "maps"]
    assert len(section.maps) == len(raw)
    assert section.maps[0].queries[0].startswith("0 ")
    assert section.maps[0].keys[1].startswith("6 " if family != "t5" else "")


def test_token_types_add_up_and_agree_with_the_matrices(bundled):
    result = idl.audit(bundled, TEXTS, matrices=True, certain_rows=0)
    assert dict(result.token_types.schema) == Audit.schema["token_types"]
    received = result.received().group_by("layer", "head").agg(pl.col("raw").sum())
    assert received["raw"].to_numpy() == pytest.approx(1, abs=1e-5)
    raw = torch.stack(
        [result.matrices[f"text{t}.layer2.head7.encoder.raw"][:, 0].mean() for t in range(3)]
    )
    effective = torch.stack(
        [result.matrices[f"text{t}.layer2.head7.encoder.effective"][:, 0].mean() for t in range(3)]
    )
    lengths = torch.tensor([35.0, 4, 18])
    row = result.received().filter(layer=2, head=7, key_type="[CLS]")
    assert row["raw"].item() == pytest.approx(
        float((raw * lengths).sum() / lengths.sum()), abs=1e-5
    )
    assert row["effective"].item() == pytest.approx(
        float((effective * lengths).sum() / lengths.sum()), abs=1e-5
    )


def test_matrices_split_the_weights_and_masked_rows_keep_their_ranks():
    result = idl.audit(Lens(build("llama")), [ids(12)], matrices=True, certain_rows=0)
    raw, effective = (
        result.matrices[f"text0.layer1.head3.decoder.{name}"] for name in ("raw", "effective")
    )
    row = result.table.row(by_predicate=(pl.col("layer") == 1) & (pl.col("head") == 3), named=True)
    assert float((raw - effective).square().sum() / raw.square().sum()) == pytest.approx(
        row["null_share"], abs=1e-5
    )
    names = {"raw", "effective", "values", "visible", "row_rank", "row_nullity"}
    assert {name.rsplit(".", 1)[1] for name in result.matrices} == names
    rank = result.matrices["text0.layer1.head3.decoder.row_rank"]
    nullity = result.matrices["text0.layer1.head3.decoder.row_nullity"]
    assert rank.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8, 8]
    assert nullity.tolist() == [0] * 8 + [1, 2, 3, 4]
    assert result.tokens[0]["encoder"] == [str(token) for token in ids(12)]


def test_nan_in_the_model_is_named():
    model = build("bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[7] = torch.nan
    lens = Lens(model)
    with pytest.raises(NumericalError, match="texts 0 to 1, encoder layers 0 to 1: attention"):
        idl.audit(lens, [[2, 3, 4, 5, 6], [2, 3, 7, 5]])
    with torch.no_grad():
        model.encoder.layer[1].attention.self.value.weight[0, 0] = torch.nan
    with pytest.raises(NumericalError, match="attention call 1"):
        idl.audit(lens, [[2, 3, 4, 5, 6]])


def test_effects_are_those_of_the_examples_without_each_head():
    lens, texts = idl.Lens(zoo.build("llama")), [zoo.ids(9), zoo.ids(6)]
    audit = idl.audit(lens, texts, certain_rows=0, examples=1, effects="removal")
    assert len(audit.effects) == 8, "two layers of four heads, in one text"
    assert audit.effects["text"].n_unique() == 1
    for row in audit.effects.iter_rows(named=True):
        ids = texts[row["text"]]
        none = torch.zeros(len(ids), len(ids))
        whole, without = (
            lens.substitute(put, [ids]).logits.double().log_softmax(-1)
            for put in ({}, {(row["layer"], row["head"]): none})
        )
        expected = float((whole.exp() * (whole - without)).sum(-1).mean())
        assert row["effect"] == pytest.approx(expected, rel=1e-3, abs=1e-7)
    assert idl.audit(lens, texts, certain_rows=0, effects="none").effects.is_empty()


ROWS = [ids(12), ids(9, 1)]


@pytest.fixture(scope="module", params=["llama", "bert"])
def lens(request):
    return idl.Lens(build(request.param).double())


def test_measures_are_those_of_the_rows_by_plain_products(lens):
    rows = [[3, 10], [3, 7]]
    audit = idl.audit(lens, ROWS, queries=(3, -2), effects="none", certain_rows=0)
    table = audit.table.sort("text", "layer", "head").iter_rows(named=True)
    for text, capture in enumerate(lens.capture(ROWS, weights=True)):
        for head, row in zip(capture.heads, table, strict=False):
            weights, null = head.family_weights[rows[text]], 0.0
            for query, one in zip(rows[text], weights, strict=True):
                seen = seen_of(head.visible, head.family_weights)[query]
                T = (head.values @ head.output_projection)[seen]
                left = torch.eye(len(T)) - T @ torch.linalg.pinv(T, rtol=1e-6)
                null += float((one[seen] @ left).square().sum())
            share = null / float(weights.square().sum())
            assert row["n_query"] == 2
            assert row["null_share"] == pytest.approx(share, abs=1e-6)
            assert row["rank"] == torch.linalg.matrix_rank(T, rtol=1e-6)
            assert row["nullity"] == len(T) - row["rank"]
            assert row["first_mass"] == pytest.approx(float(weights[:, 0].mean()), abs=1e-6)
    assert "Of each map only these rows are measured: 3, -2." in audit.sections()[0].text
    assert audit.matrices == {}


def test_certain_mass_is_that_of_the_positions_named(lens):
    audit = idl.audit(lens, ROWS[:1], queries=("last", 4), layers=1, certain_rows=2, effects="none")
    table = idl.certify(lens, ROWS[:1], queries=("last", 4), layers=1, tolerance=0).table
    expected = table.group_by("head", "query").agg(pl.col("lo").sum()).sort("head", "query")
    found = audit.rows.sort("head", "query")
    assert found["query"].to_list() == expected["query"].to_list() == [4, 11] * 4
    assert found["certain_mass"].to_list() == pytest.approx(expected["lo"].to_list(), abs=1e-6)


def test_all_rows_by_name_give_the_whole_audit(lens):
    options = {"effects": "none", "certain_rows": 1, "examples": 0}
    whole = idl.audit(lens, ROWS, **options).table
    named = idl.audit(lens, ROWS, queries=range(-9, 0), **options).table
    columns = ["null_share", "pearson", "sink_mass", "output_share", "rank", "certain_mass"]
    one, other = (table.filter(text=1).select(columns) for table in (whole, named))
    assert_close(one.to_torch().double(), other.to_torch().double())
