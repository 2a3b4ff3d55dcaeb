"""The faithfulness bench: tables against plain references, the finding and the report."""

import polars as pl
import pytest
import torch
from scipy.stats import spearmanr

import identilens as idl
from helpers.zoo import build, ids
from identilens.measures.explanations.orders import removal_sets
from identilens.models.rollouts import final_rollouts
from identilens.models.substitution import Rows
from identilens.studies.faithfulness import study as row_tests
from identilens.studies.faithfulness.settings import FaithfulnessSettings
from identilens.studies.faithfulness.study import FaithfulnessStudy, faithfulness, sampled_maps

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
    head = lens.layer(item, 1).head(2)
    for (query, intervention), rows in found.table.filter(outcome="hidden").group_by(
        "query", "intervention"
    ):
        keys = torch.arange(query + 1 if family == "llama" else 11)
        eye = torch.zeros(len(keys), 11, dtype=torch.bool)
        eye[torch.arange(len(keys)), keys] = True
        singles = plain_effects(lens, item, head, query, intervention, eye)
        raw = rows.filter(explanation="raw").row(0, named=True)
        weights = head.attention[query][keys]
        assert raw["parts"] == len(keys)
        assert raw["correlation"] == pytest.approx(spearmanr(weights, singles).statistic, abs=1e-3)
        sizes = [size for size in QUICK["groups"] if size < len(keys)]
        sets = removal_sets(weights.argsort(descending=True), sizes)
        padded = torch.zeros(len(sets), 11, dtype=torch.bool)
        padded[:, keys] = sets
        expected = plain_effects(lens, item, head, query, intervention, padded)
        assert raw["aopc"] == pytest.approx(sum(expected) / len(expected), rel=1e-4)
        assert rows["naopc"].is_between(0, 1).all()
        random = rows.filter(explanation="random")["aopc"]
        assert len(random) == 19
        # Areas apart by the noise floor count for chance.
        as_good = (random >= raw["aopc"] - raw["floor"]).sum()
        assert raw["p"] == pytest.approx((1 + as_good) / 20)


def test_causal_rows_see_their_keys_and_every_outcome_is_there(causal):
    assert (causal.table["parts"] == causal.table["query"] + 1).all()
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


def test_rows_whose_effects_are_rounding_are_left_out_and_counted(monkeypatch, tmp_path):
    lens, options = lens_of("bert"), {"layers": 1, "heads": 1, **QUICK}
    plain = faithfulness(lens, [ids(13)], **options)
    assert plain.faithful()["left_out"].sum() == 0
    assert plain.table["floor"].is_between(1e-9, 1e-6).all()
    monkeypatch.setattr(row_tests, "noise_floor", lambda *_: {"hidden": 10.0})
    found = faithfulness(lens, [ids(13)], **options)
    assert not found.table["correlation"].count() + found.table["naopc"].count()
    assert (found.table["p"] == 1).all()
    assert found.faithful("aopc")["left_out"].to_list() == [0] * 16
    assert "no more than rounding does (the noise floor)" in found.summary().text
    assert found.to_html(tmp_path / "page.html").is_file()


def test_rows_that_the_output_determines_are_left_out_of_the_agreement():
    """Of a causal map with d_v = 8, only rows of more than 9 keys have other weights."""
    found = faithfulness(lens_of("gpt2"), [ids(20)], layers=0, heads=0, **{**QUICK, "rows": 18})
    assert found.table["query"].n_unique() == 18
    assert found.determinacy["query"].min() >= 8


def test_rows_without_alternatives_and_texts_without_rows():
    short = faithfulness(lens_of("bert"), [ids(5)], layers=0, heads=0, **QUICK)
    assert not len(short.determinacy)
    assert list(short.charts()) == ["faithful"]
    single = faithfulness(lens_of("gpt2"), [[5]], **QUICK)
    assert single.summary().text.startswith("No order is better than another")
    assert not single.charts()


def test_means_take_texts_as_units_and_are_tested_against_those_of_random_orders(causal):
    one = {"outcome": "loss", "intervention": "zero"}
    rows = causal.table.filter(**one)

    def mean(**which):
        texts = rows.filter(**which).group_by("text").agg(pl.col("correlation").mean())
        return texts["correlation"].mean()

    found = causal.faithful("correlation").filter(**one, explanation="raw").row(0, named=True)
    assert (found["mean"], found["texts"]) == (pytest.approx(mean(explanation="raw")), 2)
    random = [mean(explanation="random", draw=draw) for draw in range(19)]
    assert found["random"] == pytest.approx(sum(random) / 19)
    as_good = sum(one >= found["mean"] - 1e-12 for one in random)
    assert found["p"] == pytest.approx((1 + as_good) / 20)


def test_maps_and_rows_are_drawn_from_the_seed_and_the_text():
    lens = lens_of("gpt2")
    [item] = lens.read([ids(6)])

    def drawn(text=0, **options):
        settings = FaithfulnessSettings(**options)
        maps = sampled_maps(FaithfulnessStudy(lens, [item, item], settings), text)
        return [(one.columns["layer"], one.columns["head"], *one.queries) for one in maps]

    every = drawn(maps=99, rows=99, groups=(2, 3))
    heads = [(site.layer, head) for site in lens.sites(item) for head in range(site.heads)]
    assert [one[:2] for one in every] == heads
    assert {one[2:] for one in every} == {(2, 3, 4, 5)}
    some = drawn(maps=2, rows=2)
    assert [len(one) for one in some] == [4, 4]
    assert some == sorted(some) == drawn(maps=2, rows=2)
    assert some not in (drawn(1, maps=2, rows=2), drawn(maps=2, rows=2, seed=1))
    assert drawn(maps=99, groups=(6,)) == []


@pytest.mark.parametrize(
    ("family", "has"), [("llama", True), ("gemma2", False), ("gpt_neox", False)]
)
def test_alti_is_left_out_where_a_block_is_not_its_input_plus_attention(family, has):
    lens = lens_of(family)
    assert ("alti" in final_rollouts(lens, lens.read([ids(7)])[0])) == has
