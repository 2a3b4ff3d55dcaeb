"""Rows of maps whose certain mass an audit finds: which ones, what it is, and how sure their mean is."""

import polars as pl
import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.heads import TEXTS
from helpers.reference import with_sink
from helpers.zoo import build, example, ids
from identilens.linalg import ProjectedValues, memory
from identilens.measures.attention import attention_intervals, certain_mass
from identilens.models import Lens
from identilens.studies.audit import study


def small_sinks():
    model = build("gpt_oss")
    for name, parameter in model.named_parameters():
        if "sinks" in name:
            parameter.data.fill_(-30.0)
    return Lens(model)


FAMILIES = ("llama", "t5", "gpt_oss", "modernbert")
"""A grouped decoder, cross attention, sinks, windows."""


@pytest.mark.parametrize("family", [*FAMILIES, "small sinks", "bundled"])
def test_certain_mass_is_that_of_the_rows_that_were_drawn(family, bundled, monkeypatch):
    small, real = family == "small sinks", family == "bundled"
    lens = bundled if real else small_sinks() if small else Lens(build(family))
    inputs = TEXTS[:1] if real else [ids(14)] if small else example(family)
    layers = [0] if family == "bundled" else None
    audit = idl.audit(lens, inputs, layers=layers, certain_rows=2, seed=3)
    assert audit.table.filter(pl.col("certain_rows") != pl.min_horizontal(2, "n_query")).is_empty()
    captured = enumerate(lens.capture(inputs, weights=True))
    held = {
        (text, head.layer, head.head, head.kind): head
        for text, one in captured
        for head in one.heads
    }
    places = ["text", "layer", "head", "kind"]
    for row in audit.rows.iter_rows(named=True):
        head = held[*(row[name] for name in places)]
        weights, values, seen = with_sink(head, head.projected.compact)
        weights, seen = weights[row["query"]], seen[row["query"]]
        sink = audit.table.filter(**{name: row[name] for name in places})["sink"].item()
        T = ProjectedValues(values, head.projected.d_model)
        found = attention_intervals(weights, T, visible=seen)
        # Bounds follow the values, which two passes in single precision round otherwise.
        assert row["certain_mass"] == pytest.approx(float(found.lo.sum()), abs=1e-5)
        ends = [row["sink_lo"], row["sink_weight"], row["sink_hi"]]
        assert ends == pytest.approx(
            [float(found.lo[sink]), float(weights[sink]), float(found.hi[sink])], abs=1e-5
        )
    means = audit.rows.group_by(places).agg(mean=pl.col("certain_mass").mean())
    joined = audit.table.join(means, on=places)
    assert (joined["mean"] - joined["certain_mass"]).abs().max() < 1e-12
    monkeypatch.setattr(memory, "PROCESSOR_BYTES", 2**16)
    again = idl.audit(lens, inputs, layers=layers, certain_rows=2, seed=3, batch_size=1)
    assert again.rows["query"].equals(audit.rows["query"]), (
        "neither batches nor blocks change what is drawn"
    )
    assert (again.rows["certain_mass"] - audit.rows["certain_mass"]).abs().max() < 1e-5


def test_rows_are_spread_over_the_drawn_texts_unless_a_number_is_given(bundled):
    texts = TEXTS * 2
    drawn = idl.audit(bundled, texts, layers=[0], examples=1).table
    rows = dict(drawn.group_by("text").agg(pl.col("certain_rows").unique()).iter_rows())
    assert sorted(rows.values()) == [[0], [0], [1], [1], [1], [1]]
    assert drawn.filter(certain_rows=0)["certain_mass"].null_count() == 24
    assert set(idl.audit(bundled, texts[:2], layers=[0], examples=1).table["certain_rows"]) == {2}
    assert set(idl.audit(bundled, texts[:1], layers=[0]).table["certain_rows"]) == {4}
    other = idl.audit(bundled, texts, layers=[0], examples=1, seed=2).table
    assert set(other.filter(certain_rows=1)["text"]) != set(drawn.filter(certain_rows=1)["text"])
    whole = idl.audit(bundled, TEXTS[1:2], layers=[0], certain_rows=99)
    assert set(whole.table["certain_rows"]) == {4}, "a text of four tokens has four rows"
    assert set(whole.table["certain_mass_error"]) == {0.0}, "every row was taken"
    assert whole.provenance["settings"]["certain_rows"] == 99
    assert whole.provenance["seed"] == 0


def test_texts_of_all_lengths_are_examined_within_the_budget(bundled, monkeypatch):
    text = " ".join(TEXTS) + " The ferry left before dawn." * 4
    mixed = [f"{text} {text}", text, TEXTS[1], f"{text} {text} {text}"]
    options = {"layers": [0], "example_length": 20}
    found = idl.audit(bundled, mixed, examples=2, **options)
    assert set(found.rows["text"]) == {0, 1, 2, 3}
    assert found.effects["text"].n_unique() == 2
    whole = {key for key in found.matrices if not key.endswith("means")}
    assert {key.partition(".")[0] for key in whole} == {"text2"}
    means = {key.partition(".")[0] for key in found.matrices if key.endswith("means")}
    assert len(means) == 2
    assert means <= {"text0", "text1", "text3"}, "of as many long texts as there are examples"
    choices = [one.choices["text"] for one in found.report_maps()]
    assert {text.partition(" ")[0] for text in choices} == {"2", *(name[4:] for name in means)}
    assert set(found.table.filter(text=3)["certain_rows"]) == {2}
    monkeypatch.setattr(study, "_KEYS", 1)
    single = idl.audit(bundled, mixed[3:], **options).table
    assert set(single["certain_rows"]) == {1}, "one row of a map however long it is"
    monkeypatch.setattr(study, "_TOKENS", int(single["n_query"].max()) - 1)
    few = idl.audit(bundled, mixed, **options).table.filter(pl.col("certain_rows") > 0)
    assert few.unique("text")["n_query"].sum() < single["n_query"].max()
    monkeypatch.setattr(study, "_LONG", 30)
    assert set(idl.audit(bundled, mixed, **options).effects["text"]) <= {2}
    assert not idl.audit(bundled, mixed[:1], effects="estimate", **options).effects.is_empty()


def test_kept_weights_of_half_precision_are_computed_again(bundled_path):
    lens = idl.load(bundled_path, dtype="bfloat16", device="cpu")
    audit = idl.audit(lens, TEXTS[:1], examples=1, certain_rows=0)
    head = next(lens.capture(TEXTS[0], weights=True)).layers[2].head(3)
    raw = audit.matrices["text0.layer2.head3.encoder.raw"]
    assert_close(raw.double(), head.recomputed, atol=1e-7, rtol=1e-6)
    assert float((raw - head.family_weights.float()).abs().max()) > 1e-5, (
        "rounded weights are another map"
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_rounding_of_the_output_takes_its_part(family, dtype):
    """What is left of certain mass where the output may change by bfloat16's rounding, within a hundredth."""
    lens = Lens(build(family).to(getattr(torch, dtype)))
    audit = idl.audit(lens, [ids(24)], certain_rows=3)
    head = {(one.layer, one.head): one for one in next(lens.capture([ids(24)], weights=True)).heads}
    for row in audit.rows.iter_rows(named=True):
        one = head[row["layer"], row["head"]]
        visible = None if one.visible is None else one.visible[row["query"]][None]
        expected = certain_mass(
            one.attention[row["query"]][None], one.projected, visible=visible, tolerance=2**-8
        )
        assert row["certain_mass_bfloat16"] <= float(expected) + 1e-5
        assert row["certain_mass_bfloat16"] >= float(expected) - 0.01 - 1e-5
        assert row["certain_mass_bfloat16"] <= row["certain_mass"]
    lost = (audit.rows["certain_mass"] - audit.rows["certain_mass_bfloat16"]).mean()
    assert lost > 1e-4
    assert "up to a rounding to bfloat16" in audit.summary().text


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_of_kept_maps_with_a_sink_nothing_is_proven(dtype, tmp_path):
    lens = Lens(build("gpt_oss").to(getattr(torch, dtype)))
    audit = idl.audit(lens, [ids(14)], examples=1, certain_rows=0)
    assert not [name for name in audit.matrices if name.endswith(".values")]
    assert audit.to_html(tmp_path / "report.html").is_file()
