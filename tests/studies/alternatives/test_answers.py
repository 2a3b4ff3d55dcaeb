"""Alternatives that keep the model's answer, of one head and of all together: confirmed by the model."""

import pytest
import torch
import transformers as hf

import identilens as idl
from helpers import zoo
from identilens.errors import InputError, SettingError
from identilens.models.substitution import Rows

IDS = {"input_ids": torch.arange(5, 25)[None]}


@pytest.fixture(scope="module")
def lens():
    return idl.Lens(zoo.build("llama"))


def nats(lens, put):
    """KL divergence of the prediction at the last position, from plain runs of the model."""
    runs = [lens.substitute(one, IDS).logits[-1].double().log_softmax(-1) for one in ({}, put)]
    return float((runs[0].exp() * (runs[0] - runs[1])).sum())


def test_a_row_leaves_its_keys_and_the_model_confirms_the_answer(lens):
    found = idl.alternatives(
        lens, IDS, layers=1, outcome="prediction", tolerance="0.01nats", queries=(19,)
    )
    assert found.table["alternative"].to_list() == ["answer_least_19"] * 4
    for row in found.table.iter_rows(named=True):
        name = f"text0.layer1.head{row['head']}.decoder"
        raw, other = (
            found.matrices[f"{name}.{one}"] for one in ("raw", "alternative_answer_least_19")
        )
        assert torch.equal(raw[:-1], other[:-1].to(raw)), "other rows stay"
        changed = other[-1]
        assert changed.min() >= 0
        assert float(changed.sum()) == pytest.approx(1, abs=1e-6)
        given = nats(lens, {(1, row["head"]): Rows([19], changed[None])})
        assert given == pytest.approx(row["measured"], rel=1e-3, abs=1e-7)
        assert row["measured"] <= row["allowed"] == 0.01
        order = raw[-1].argsort(descending=True)
        largest = order[raw[-1][order].cumsum(0) - raw[-1][order] < 0.9]
        assert float(raw[-1][largest].sum()) == pytest.approx(row["mass_before"], abs=1e-6)
        assert float(changed[largest].sum()) == pytest.approx(row["mass_after"], abs=1e-6)
        assert row["mass_after"] < row["mass_before"]
        moved = float((changed - raw[-1]).abs().sum() / 2)
        assert row["mean_total_variation"] == pytest.approx(moved, abs=1e-6)
    text = found.summary().text
    assert "Put into the model, together where they were found together" in text
    assert "nats" in text


def test_all_heads_together_move_at_once(lens):
    options = {"outcome": "prediction", "tolerance": "0.01nats"}
    earlier = idl.alternatives(lens, IDS, together=True, layers=1, queries=(7,), **options)
    assert earlier.table["alternative"].to_list() == ["answer_least_7"] * 4
    found = idl.alternatives(lens, IDS, together=True, **options)
    assert len(found.table) == 8, "two layers of four heads"
    assert found.table["measured"].n_unique() == found.table["hidden_change"].n_unique() == 1
    put = {
        (row["layer"], row["head"]): Rows(
            [19],
            found.matrices[
                f"text0.layer{row['layer']}.head{row['head']}.decoder.alternative_answer_least_19"
            ][-1:],
        )
        for row in found.table.iter_rows(named=True)
    }
    given = nats(lens, put)
    assert given == pytest.approx(found.table["measured"][0], rel=1e-3, abs=1e-7)
    assert given <= 0.01
    assert found.table["mass_after"].mean() < found.table["mass_before"].mean()


def test_each_aim_reaches_more_of_its_own(lens):
    options = {"outcome": "prediction", "tolerance": "0.001nats", "layers": 1, "heads": 2}
    found = idl.alternatives(lens, IDS, aim="least,farthest,sparsest", **options)
    assert found.table["alternative"].to_list() == [
        f"answer_{aim}_19" for aim in ("least", "farthest", "sparsest")
    ]
    rows = {row["aim"]: row for row in found.table.iter_rows(named=True)}
    assert max(row["measured"] for row in rows.values()) <= 0.001
    for aim, row in rows.items():
        kept = found.matrices[f"text0.layer1.head2.decoder.alternative_answer_{aim}_19"][-1]
        assert int((kept > 1e-6).sum()) == row["keys_after"]
        assert row["keys_before"] == 20
    assert min(rows, key=lambda aim: rows[aim]["mass_after"]) == "least"
    assert min(rows, key=lambda aim: rows[aim]["keys_after"]) == "sparsest"
    assert rows["sparsest"]["keys_after"] < 15
    assert max(rows, key=lambda aim: rows[aim]["mean_total_variation"]) == "farthest"
    titles = {one.choices["alternative"] for one in found.sections()[0].maps}
    assert "same answer, sparsest, row 19" in titles


def test_heads_together_go_on_where_the_first_order_ends(lens, monkeypatch):
    options = {"outcome": "prediction", "tolerance": "0.01nats", "together": True}
    with monkeypatch.context() as short:
        short.setattr("identilens.studies.alternatives.answers.STEPS", 1)
        once = idl.alternatives(lens, IDS, **options)
    found = idl.alternatives(lens, IDS, **options)
    assert found.table["mass_after"].sum() < once.table["mass_after"].sum()
    assert found.table["measured"][0] <= 0.01


def test_keys_are_named_and_shares_are_of_the_heads_effect(lens):
    found = idl.alternatives(
        lens, IDS, layers=0, heads=2, outcome="states", tolerance="10%", queries=(7,), keys=(3, 0)
    )
    [row] = found.table.to_dicts()
    assert row["allowed"] == pytest.approx(0.1 * row["effect"])
    raw = found.matrices["text0.layer0.head2.decoder.raw"][7]
    assert row["mass_before"] == pytest.approx(float(raw[[0, 3]].sum()), abs=1e-6)
    assert 0 < row["measured"] <= row["allowed"]
    with pytest.raises(InputError, match="position"):
        idl.alternatives(lens, IDS, layers=0, heads=2, outcome="states", keys=("zebra",))


@pytest.mark.parametrize("trading", [True, False])
def test_heads_trade_their_outputs_where_their_projections_have_less_rank(trading):
    torch.manual_seed(0)
    config = hf.LlamaConfig(**zoo._LLAMA, head_dim=16 if trading else 8)
    lens = idl.Lens(zoo._random(hf.LlamaForCausalLM(config)).double())
    found = idl.alternatives(
        lens, IDS, layers=1, outcome="layer", tolerance="float32", aim="farthest"
    )
    assert found.table["alternative"].unique().to_list() == ["layer_farthest_19"]
    assert found.table["tolerance"].unique().to_list() == ["float32"]
    capture = next(lens.capture(IDS, weights=True)).layers[1]
    moved, apart = 0.0, []
    for head, row in zip(capture.heads, found.table.iter_rows(named=True), strict=True):
        name = f"text0.layer1.head{head.head}.decoder.alternative_layer_farthest_19"
        other = found.matrices[name][19].double()
        assert other.min() >= 0
        assert float(other.sum()) == pytest.approx(1, abs=1e-6)
        change = (other - head.attention[19]) @ head.values @ head.output_projection
        apart.append(float(change.norm()))
        moved = moved + change
        assert row["mean_total_variation"] > 0.01
        assert row["hidden_change"] < 1e-6
        assert row["measured"] <= row["allowed"] == 2**-24
    whole = sum(head.attention[19] @ head.values @ head.output_projection for head in capture.heads)
    assert float(moved.norm() / whole.norm()) < 1e-5  # matrices are stored in single precision
    assert (max(apart) > 1e-3 * float(whole.norm())) == trading
    text = found.summary().text
    assert (
        "they change the outcome (sum of the heads' outputs) by at most 6.0e-08 of its length"
        in text
    )
    with pytest.raises(SettingError, match="tolerance"):
        idl.alternatives(lens, IDS, outcome="layer", tolerance=0)


def test_a_sum_of_outputs_is_measured_in_all_its_directions():
    """Directions below the rank tolerance can move the sum by more than a rounding to float32."""
    lens = idl.load("bundled-decoder")
    text = "Snow fell on the harbour all night, and in the morning nobody came to the ferry, for it was cold"
    found = idl.alternatives(
        lens, text, outcome="layer", tolerance="float32", layers=1, aim="farthest"
    )
    [query] = found.table["query"].unique()
    heads = next(lens.capture(text, weights=True)).layers[1].heads
    change = whole = 0.0
    for head in heads:
        T = head.values.double() @ head.output_projection.double()
        name = f"text0.layer1.head{head.head}.decoder.alternative_layer_farthest_{query}"
        change = change + (found.matrices[name][query].double() - head.attention[query]) @ T
        whole = whole + head.attention[query] @ T
    share = float(change.norm() / whole.norm())
    # Matrices are stored in single precision.
    assert share == pytest.approx(found.table["measured"][0], abs=2**-24)
    assert found.table["measured"].max() <= 2**-24
    assert found.table["mean_total_variation"].max() > 1e-4
