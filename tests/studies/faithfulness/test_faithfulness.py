"""The faithfulness bench: tables against plain references, the control, resumption, the command and the report."""

from dataclasses import replace

import polars as pl
import pytest
import torch
from scipy.stats import spearmanr

import identilens as idl
from helpers.zoo import build, ids
from identilens.linalg import ProjectedValues
from identilens.measures.explanations import explain_rows
from identilens.measures.explanations.orders import removal_sets
from identilens.models.reading import read_head
from identilens.models.substitution import Rows
from identilens.studies.faithfulness.sampling import FaithfulnessSettings, SampledMap
from identilens.studies.faithfulness.study import evaluate, faithfulness, self_agreement

QUICK = {"rows": 2, "groups": (1, 2), "searched": 4, "alternatives": 2}


def lens_of(family):
    return idl.Lens(build(family).double())


@pytest.fixture(scope="module")
def causal():
    """A grouped decoder with a head: rows see different keys, the change of logits and loss is known."""
    return faithfulness(lens_of("llama"), [ids(14), ids(12, 1)], **QUICK)


def plain_effects(lens, item, head, query, intervention, sets):
    """What removing sets of keys does to the final hidden states, one run of the model for each."""

    def final(weights):
        run = lens.substitute(
            {(head.layer, head.head, head.kind): Rows([query], weights[None])}, item
        )
        return next(reversed(run.hidden_states.values()))[-1]

    own = head.attention[query]
    before, found = final(own), []
    for removed in sets:
        left = own.masked_fill(removed, 0)
        if intervention == "renormalise" and left.sum() > 0:
            left = left / left.sum()
        found.append(float((final(left) - before).norm() / before.norm()))
    return found


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_correlations_and_areas_are_those_of_single_runs(family):
    lens, text = lens_of(family), ids(11)
    found = faithfulness(lens, [text], layers=1, heads=2, **QUICK)
    [item] = lens.read([text])
    head = read_head(lens, item, 1, 2)
    for (query, intervention), rows in found.table.filter(outcome="hidden").group_by(
        "query", "intervention"
    ):
        keys = torch.arange(query + 1 if family == "llama" else 11)
        eye = torch.zeros(len(keys), 11, dtype=torch.bool)
        eye[torch.arange(len(keys)), keys] = True
        singles = plain_effects(lens, item, head, query, intervention, eye)
        raw = rows.filter(explanation="raw").row(0, named=True)
        weights = head.attention[query][keys]
        assert raw["n_key"] == len(keys)
        assert raw["correlation"] == pytest.approx(spearmanr(weights, singles).statistic, abs=1e-3)
        sizes = [size for size in QUICK["groups"] if size < len(keys)]
        sets = removal_sets(weights.argsort(descending=True), sizes)
        padded = torch.zeros(len(sets), 11, dtype=torch.bool)
        padded[:, keys] = sets
        expected = plain_effects(lens, item, head, query, intervention, padded)
        assert raw["aopc"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)
        assert rows["naopc"].is_between(0, 1).all()


def test_causal_rows_see_their_keys_and_every_outcome_is_there(causal):
    assert (causal.table["n_key"] == causal.table["query"] + 1).all()
    assert set(causal.table["outcome"]) == {"hidden", "logits", "loss"}
    assert causal.table["correlation"].is_between(-1.001, 1.001).all()
    # A value is zeroed where a weight is: one head's share of value zeroing follows its norm.
    means = dict(
        causal.faithful("correlation")
        .filter(intervention="zero", outcome="hidden")
        .select("explanation", "mean")
        .iter_rows()
    )
    assert means["norm"] > 0.9
    assert means["value_zeroing"] > 0.9
    assert means["random"] < 0.7


def test_what_depends_on_the_output_alone_is_determined(causal):
    agreed = {
        name: rows["agreement"] for (name,), rows in causal.determinacy.group_by("explanation")
    }
    for name in ("effective", "certain"):
        assert agreed[name].to_list() == pytest.approx([1.0] * len(agreed[name]), abs=1e-6)
    assert agreed["raw"].mean() < 1
    assert (causal.determinacy["alternative"] == "drawn").all(), (
        "keys of a group cannot be changed for one head"
    )


def test_alternatives_by_other_parameters_change_explanations_and_not_the_model():
    found = faithfulness(lens_of("bert"), [ids(13)], layers=1, heads=1, **QUICK)
    made = found.determinacy.filter(alternative="parameters")
    assert (made["total_variation"] > 0.001).all()
    control = found.controls.filter(alternative="parameters", outcome="hidden").row(0, named=True)
    # The family computes its softmax in float32.
    assert control["change"] < 1e-6
    assert not len(found.failed_controls().filter(alternative="drawn"))


def test_the_control_fails_for_weights_with_another_output(monkeypatch):
    from identilens.studies.faithfulness import study

    wrong = lambda lens, item, drawn, count: {"drawn": [drawn.weights.flip(-1)]}  # noqa: E731
    monkeypatch.setattr(study, "alternatives_of", wrong)
    found = faithfulness(lens_of("bert"), [ids(13)], layers=1, heads=1, **QUICK)
    assert len(found.failed_controls()) == len(found.controls) == 1
    assert "1 of 1 controls are above the limit of 4 times" in found.summary().text


def test_rows_whose_effects_are_rounding_are_left_out_and_counted(monkeypatch, tmp_path):
    lens, options = lens_of("bert"), {"layers": 1, "heads": 1, **QUICK}
    plain = faithfulness(lens, [ids(13)], **options)
    assert plain.left_out().row(0) == ("zero", "hidden", 2, 0, 0)
    assert plain.table["floor"].is_between(1e-9, 1e-6).all()
    assert (plain.table["above_floor"] == 13).all()
    monkeypatch.setattr(SampledMap, "floor", {"hidden": 10.0})
    found = faithfulness(lens, [ids(13)], **options)
    assert found.left_out().row(0) == ("zero", "hidden", 2, 2, 2)
    assert not found.table["correlation"].count()
    assert not found.table["above_floor"].sum()
    assert "no more than rounding does (the noise floor)" in found.summary().text
    assert found.to_html(tmp_path / "page.html").is_file()


def test_effects_without_an_order_give_no_correlation_and_scores_without_one_give_none():
    removal = lambda sets: {"same": torch.ones(len(sets)), "last": sets[:, -1].double()}  # noqa: E731
    explained = {"raw": torch.tensor([0.1, 0.2, 0.7]), "even": torch.ones(3)}
    settings = FaithfulnessSettings(groups=(1, 2), searched=3)
    floor = {"same": 0.0, "last": 1e-7}
    rows = list(evaluate(removal, explained, settings, torch.Generator().manual_seed(0), floor))
    found = {(row["outcome"], row["explanation"]): row["correlation"] for row in rows}
    assert found[("same", "raw")] is None
    assert found[("last", "even")] == 0
    assert found[("last", "raw")] > 0.5
    assert [row["above_floor"] for row in rows] == [3, 3, 1, 1]


def test_rows_that_the_output_determines_are_left_out_of_the_agreement():
    """Of a causal map with d_v = 8, only rows of more than 9 keys have other weights."""
    found = faithfulness(lens_of("gpt2"), [ids(20)], layers=0, heads=0, **{**QUICK, "rows": 18})
    assert found.table["query"].n_unique() == 18
    assert found.determinacy["query"].min() >= 8


def test_rows_without_an_order_do_not_count_as_stable(causal):
    agreements = [0.5, 0.7, None, None]
    table = causal.determinacy.head(4).with_columns(
        explanation=pl.lit("certain"), alternative=pl.lit("drawn"), text=pl.Series([0, 1, 2, 3]),
        agreement=pl.Series(agreements),
    )  # fmt: skip
    result = replace(causal, determinacy=table)
    row = result.stable().row(0, named=True)
    assert (row["mean"], row["no_order"]) == pytest.approx((0.6, 0.5))
    plane = result.plane()
    assert plane["explanation"].to_list() == causal.plane()["explanation"].to_list()
    assert plane.filter(explanation="certain")["no_order"].item() == 0.5
    assert plane.filter(pl.col("explanation") != "certain")["no_order"].is_null().all()
    assert (
        "Left out where all of their scores are equal: certain in 50.0 % of the rows."
        in result.summary().text
    )


def test_nothing_certain_has_no_order_and_no_agreement():
    """Every key can be left out: two keys of each value."""
    values = torch.tensor([[0.0], [0.0], [1.0], [1.0]], dtype=torch.float64)
    weights = torch.tensor([[0.3, 0.2, 0.4, 0.1]], dtype=torch.float64)
    other = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64)
    own, others = (explain_rows(one, ProjectedValues.of(values)) for one in (weights, other))
    seen = torch.ones(1, 4, dtype=torch.bool)
    assert self_agreement(own["certain"], others["certain"], seen).isnan().all()
    assert not self_agreement(own["raw"], others["raw"], seen).isnan().any()


def test_rows_without_alternatives_and_texts_without_rows():
    short = faithfulness(lens_of("bert"), [ids(5)], layers=0, heads=0, **QUICK)
    assert not len(short.determinacy)
    assert "no explanation can change with them" in short.summary().text
    assert list(short.charts()) == ["faithful", "correlation"]
    single = faithfulness(lens_of("gpt2"), [[5]], **QUICK)
    assert single.summary().text.startswith("No row was tested")


def test_means_and_differences_take_texts_as_units(causal):
    one = {"outcome": "loss", "intervention": "zero"}

    def by_text(name):
        rows = causal.table.filter(**one, explanation=name)
        return rows.group_by("text", maintain_order=True).agg(pl.col("correlation").mean())[
            "correlation"
        ]

    found = causal.faithful("correlation").filter(**one, explanation="raw").row(0, named=True)
    assert (found["mean"], found["texts"]) == (pytest.approx(by_text("raw").mean()), 2)
    moved = causal.against(measure="correlation").filter(**one, explanation="norm")
    assert moved["mean"].item() == pytest.approx((by_text("norm") - by_text("raw")).mean())
