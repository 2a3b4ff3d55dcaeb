"""Texts in, results out: every kind of model, padding, resuming, saving; a real encoder."""

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

from helpers.zoo import build, example, ids
from identilens.errors import SettingError, UnsupportedModelError
from identilens.measures.mixing import contributions
from identilens.models import Lens
from identilens.models.derivative.jacobian import jacobian_norms
from identilens.models.linearise import HiddenMap
from identilens.studies.mixing.result import Mixing
from identilens.studies.mixing.study import mixing

QUICK: dict = {"sketch_probes": 6}


def test_charts_of_a_shallow_encoder_and_of_a_token_of_a_later_text():
    model = build("bart")
    model.config.encoder_layers = 1
    batch = {"input_ids": torch.tensor([ids(7)]), "decoder_input_ids": torch.tensor([ids(4)])}
    for lens, texts, options in (
        (Lens(type(model)(model.config).eval()), batch, {}),
        (Lens(build("gpt2")), [[3, 4, 5, 6], [7, 8, 9]], {"queries": "8", "rollouts": False}),
    ):
        assert "tracked_token" in mixing(lens, texts, **QUICK, **options).charts()


@pytest.mark.parametrize("family", ["bert", "albert", "gpt2", "vit", "whisper", "deepseek_v3"])
def test_every_kind_of_model(family):
    lens = Lens(build(family))
    result = mixing(
        lens, example(family)[:1] if isinstance(example(family), list) else example(family), **QUICK
    )
    assert result.table.schema == pl.Schema(Mixing.schema["table"])
    assert result.token_names.schema == pl.Schema(Mixing.schema["token_names"])
    expected = {"whisper": ["encoder", "decoder", "cross"]}
    causal = ["decoder"] if family in ("gpt2", "deepseek_v3") else ["encoder"]
    assert result.kinds == expected.get(family, causal)
    names = result.token_names.group_by("text", "kind", "side").agg(pl.col("position").sort())
    for positions in names["position"].to_list():
        assert positions == list(range(len(positions)))
    for kind in result.kinds:
        array = result.array(0, kind)
        assert array.shape == (2, len(result.names(0, kind)), len(result.names(0, kind, "input")))
        np.testing.assert_allclose(array.sum(-1), 1)
        raw, effective = (result.array(0, kind, f"{name}_rollout") for name in ("raw", "effective"))
        if kind == "cross":
            assert np.isnan(raw).all()
        else:
            np.testing.assert_allclose(raw.sum(-1), 1, rtol=1e-5)
            np.testing.assert_allclose(effective.sum(-1), 1, rtol=1e-5)
        if kind == "decoder":
            assert not np.triu(array, 1).any()
            assert not np.triu(effective, 1).any()


def test_numbers_are_those_of_the_measures():
    lens = Lens(build("bert").double())
    texts = example("bert")[:2]
    result = mixing(lens, texts, method="exact", rollouts=False)
    for text, item in enumerate(lens.read(texts)):
        hidden = HiddenMap(lens, item)
        for layer, norms in enumerate(jacobian_norms(hidden, hidden.inputs, method="exact")):
            shares = contributions(norms.squares, norms.variances).shares
            np.testing.assert_allclose(result.array(text)[layer], shares, rtol=1e-12)
            np.testing.assert_allclose(
                result.array(text, measure="norm")[layer], norms.squares.sqrt(), rtol=1e-6
            )
    assert result.table["standard_error"].max() == 0
    assert result.table["raw_rollout"].null_count() == len(result.table)
    assert result.summary().numbers["typical_error"] == 0


def test_padding_and_training_mode_change_nothing():
    model = build("bert")
    lens = Lens(model)
    texts = [ids(9, 0), ids(6, 1)]
    alone = mixing(lens, texts, **QUICK)
    for side in ("left", "right"):
        rows = [[0] * 3 + texts[1] if side == "left" else texts[1] + [0] * 3]
        batch = torch.tensor([texts[0], *rows])
        mask = torch.ones(2, 9, dtype=torch.long)
        mask[1, slice(0, 3) if side == "left" else slice(6, 9)] = 0
        padded = mixing(lens, {"input_ids": batch, "attention_mask": mask}, **QUICK)
        assert_frame_equal(padded.table, alone.table, rel_tol=1e-4, abs_tol=1e-5)
    model.train()
    assert_frame_equal(mixing(lens, texts, **QUICK).table, alone.table, rel_tol=1e-4, abs_tol=1e-5)
    assert model.training


def test_sketch_is_near_exact_and_says_how_near():
    lens = Lens(build("bert"))
    exact = mixing(lens, [ids(9)], method="exact").table
    sketch = mixing(lens, [ids(9)], sketch_probes=24, seed=4).table
    miss = (sketch["contribution"] - exact["contribution"]).abs()
    assert (miss <= 2 * sketch["standard_error"]).mean() > 0.85
    assert (miss / exact["contribution"]).median() < 0.04
    other = mixing(lens, [ids(9)], sketch_probes=24, seed=5).table
    assert not np.allclose(other["contribution"], sketch["contribution"], rtol=1e-4)


def test_half_precision_is_computed_in_single_and_broken_models_are_refused():
    half = build("bert").bfloat16()
    single = build("bert")
    single.load_state_dict(half.state_dict())
    found, expected = (
        mixing(Lens(one), [ids(5)], method="exact", rollouts=False).table["norm"]
        for one in (half, single)
    )
    assert ((found - expected).abs() <= 1e-3 * expected).all()
    model = build("bert")
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = float("inf")
    with pytest.raises(UnsupportedModelError, match="capture"):
        mixing(Lens(model), [ids(5)], rollouts=False, **QUICK)


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
def test_chosen_positions_are_rows_of_the_whole(family):
    lens = Lens(build(family).double())
    inputs = example(family)[:1] if isinstance(example(family), list) else example(family)
    whole = mixing(lens, inputs, method="exact")
    found = mixing(lens, inputs, method="exact", queries=(1, "last"))
    last = pl.col("hidden").max().over("kind")
    rows = whole.table.filter((pl.col("hidden") == 1) | (pl.col("hidden") == last))
    assert_frame_equal(found.table, rows, rel_tol=1e-6, abs_tol=1e-9)
    assert_frame_equal(found.token_names, whole.token_names)
    assert found.array(0, found.kinds[0]).shape[1] == 2
    assert found.summary().numbers["queries"] == "1, last"


def test_what_needs_every_position_is_refused_for_some():
    with pytest.raises(SettingError, match="expected track to be left out with queries; got"):
        mixing(Lens(build("bert")), [ids(5)], queries=(1,), track="a")
