"""Comprehensiveness and sufficiency of explanations of a classifier's decisions."""

from math import ceil

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import identilens as idl
from helpers.command import failing, identilens
from helpers.zoo import build, classifier, ids
from identilens.errors import InputError
from identilens.models.rollouts import final_rollouts
from identilens.studies.rationales.study import Decision, rationales

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
TEXT = "Snow fell on the harbour, and nobody came."


def probability(lens, tokens, label):
    with torch.no_grad():
        return float(lens.model(input_ids=torch.tensor([tokens])).logits[0].softmax(-1)[label])


@pytest.fixture(scope="module")
def lens():
    return classifier()


@pytest.mark.parametrize(("family", "reads"), [("bert", 0), ("gpt2", -1)])
def test_the_measures_are_those_of_single_runs_without_and_with_the_first_tokens(family, reads):
    lens, text = classifier(family), ids(13)
    result = rationales(lens, [text], draws=2)
    found = result.table
    [item] = lens.read([text])
    row = found.filter(explanation="alti").row(0, named=True)
    whole = [probability(lens, text, label) for label in range(3)]
    assert row["predicted"] == whole.index(max(whole))
    assert row["probability"] == pytest.approx(max(whole))
    order = final_rollouts(lens, item)["alti"][reads].argsort(descending=True).tolist()
    without, only = [], []
    for share in SHARES:
        first = order[: ceil(share * 13)]
        without.append(
            probability(
                lens, [one for at, one in enumerate(text) if at not in first], row["predicted"]
            )
        )
        only.append(
            probability(lens, [one for at, one in enumerate(text) if at in first], row["predicted"])
        )
    assert row["comprehensiveness"] == pytest.approx(max(whole) - sum(without) / 5, abs=1e-6)
    assert row["sufficiency"] == pytest.approx(max(whole) - sum(only) / 5, abs=1e-6)
    assert found["tokens"].unique().to_list() == [13]
    said = result.summary()
    best = found.filter(pl.col("explanation") != "random").sort("comprehensiveness")[-1]
    assert said.numbers["texts"] == 1
    assert f"comprehensiveness {best['comprehensiveness'].item():.3f}" in said.text


def test_sets_run_together_as_alone_and_padding_changes_nothing(lens):
    text = ids(9)
    [item] = lens.read([text])
    decision = Decision(lens, item)
    kept = torch.rand(4, 5, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    kept[..., 0] = True
    kept[1] = kept[0]
    found = decision.probabilities(kept)
    for place in ((0, 0), (1, 3), (3, 4)):
        tokens = torch.tensor(text)[kept[place]].tolist()
        assert float(found[place]) == pytest.approx(
            probability(lens, tokens, decision.label), abs=1e-6
        )
    assert torch.equal(found[0], found[1])
    longest = max(kept[0].sum(-1))
    batch = torch.zeros(5, longest, dtype=torch.long)
    mask = torch.arange(longest) < kept[0].sum(-1, keepdim=True)
    batch[mask] = torch.cat([torch.tensor(text)[one] for one in kept[0]])
    with torch.no_grad():
        padded = lens.model(input_ids=batch, attention_mask=mask.long()).logits.softmax(-1)[
            :, decision.label
        ]
    torch.testing.assert_close(found[0], padded, atol=1e-6, rtol=0)
    alone = rationales(lens, [text], draws=2).table
    wide = torch.tensor([[0] * 3 + text, [0] * 3 + text])
    left = {"input_ids": wide, "attention_mask": (torch.arange(12) > 2).long().expand(2, -1)}
    together = rationales(lens, left, draws=2).table
    assert_frame_equal(together.filter(text=0), alone, abs_tol=1e-9)


def test_attribution_is_of_the_class_and_keeps_its_sign(lens):
    pytest.importorskip("captum", reason="install identilens[faithfulness]")
    [item] = lens.read([ids(7)])
    decision = Decision(lens, item)
    found = decision.explained(0, True)
    assert list(found)[-3:] == ["gradient_input", "integrated_gradients", "occlusion"]
    inputs = lens.body.embeddings(torch.tensor([ids(7)])).detach()
    for token in range(7):
        zeroed = inputs.clone()
        zeroed[0, token] = 0
        drop = [
            lens.model.classifier(lens.body.pooler(lens.body.encoder(one).last_hidden_state))[
                0, decision.label
            ]
            for one in (inputs, zeroed)
        ]
        assert float(found["occlusion"][token]) == pytest.approx(
            (drop[0] - drop[1]).item(), abs=1e-6
        )
    assert (found["occlusion"] < 0).any()


def test_without_a_text_that_can_be_tested_the_finding_says_so():
    record = {"texts": {"count": 1}, "model": {"name": "a model"}, "settings": {}}
    said = idl.Rationales.of({}, record).summary()
    assert said.text == "No text was tested: none has two tokens that can be removed."
    assert said.numbers == {"texts": 0}


def test_what_cannot_be_tested(lens):
    with pytest.raises(InputError, match="BertModel gives no logits of two classes"):
        rationales(idl.Lens(build("bert")), [ids(5)])
    with pytest.raises(InputError, match="GPT2LMHeadModel gives no logits of two classes"):
        rationales(idl.Lens(build("gpt2")), [ids(5)])
    short = rationales(lens, [[7]])
    assert not len(short.table)
    assert short.summary().text.startswith("No text was tested")


def test_a_run_resumes_loads_and_reports(lens, tmp_path):
    texts, run = [ids(9), ids(6, 1), [5], ids(12, 2)], {"draws": 2, "out": tmp_path / "run"}

    def stop(done, _total, _note):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rationales(lens, texts, **run, progress=stop)
    found = rationales(lens, texts, **run, resume=True)
    assert_frame_equal(found.table, rationales(lens, texts, draws=2).table, abs_tol=1e-9)
    assert found.table["text"].unique().to_list() == [0, 1, 3]
    own, random = (
        found.table.filter(explanation=name)["sufficiency"] for name in ("hta", "random")
    )
    against = found.against("random", "sufficiency").filter(explanation="hta")
    assert against["mean"].item() == pytest.approx((own - random).mean())
    page = (
        idl.load_result(tmp_path / "run")
        .to_html(tmp_path / "page.html")
        .read_text(encoding="utf-8")
    )
    assert "Probability lost without the tokens" in page
    assert set(found.charts()) == {"comprehensiveness", "sufficiency"}


def test_the_command_keeps_special_tokens(bundled_path, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(bundled_path)
    model = AutoModelForSequenceClassification.from_pretrained(bundled_path, num_labels=2)
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "model")
    lens = idl.load(tmp_path / "model")
    [item] = lens.read([("Snow fell \u2603.", "Nobody came.")])
    places = Decision(lens, item).removable.tolist()
    marks = [
        place for place, token in enumerate(item.tokens["encoder"]) if token in ("[CLS]", "[SEP]")
    ]
    assert sorted(places + marks) == list(range(item.length))
    assert item.tokens["encoder"].index("[UNK]") in places
    options = ("--model", tmp_path / "model", "--text", TEXT, "--draws", 2)
    done = identilens("rationales", *options, "--out", tmp_path / "run", code=0)
    assert "Most needed: " in done.output
    assert "against random tokens" in done.output
    assert (tmp_path / "run" / "report.html").is_file()
    message = failing(
        "rationales", "--model", bundled_path, "--text", TEXT, "--out", tmp_path / "other"
    )
    assert "expected a model that classifies texts" in message
