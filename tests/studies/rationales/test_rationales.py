"""What decisions need; comprehensiveness and sufficiency of explanations of them."""

from math import ceil

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.written import rationales as written
from helpers.zoo import classifier, ids
from identilens.errors import SettingError
from identilens.measures.attention import certify_row
from identilens.models.linearise import HiddenMap
from identilens.models.rollouts import final_rollouts
from identilens.studies.rationales.study import Decision, rationales

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
CLASSES = dict(enumerate(("bad", "mixed", "good")))
NUMBERED = {(label,): name for label, name in CLASSES.items()}
HEADS = [
    ("bert", "SequenceClassification", 0),
    ("gpt2", "SequenceClassification", -1),
    ("gpt2", "CausalLM", -1),
    ("llama", "CausalLM", -1),
]
"""Family, task, and the position whose final state decides."""


def distribution(lens, tokens):
    """The probabilities of the classes, or of the tokens that may come next."""
    with torch.no_grad():
        logits = lens.model(input_ids=torch.tensor([tokens])).logits[0]
    return (logits if logits.ndim == 1 else logits[-1]).softmax(-1)


def probability(lens, tokens, label):
    return float(distribution(lens, tokens)[label])


@pytest.fixture(scope="module")
def lens():
    return classifier()


@pytest.mark.parametrize(("family", "head", "reads"), HEADS)
def test_the_measures_are_those_of_single_runs_without_and_with_the_first_tokens(
    family, head, reads
):
    lens, text = classifier(family, head), ids(13)
    found = rationales(lens, [text], draws=2).table
    [item] = lens.read([text])
    rollouts = final_rollouts(lens, item)
    name = "alti" if "alti" in rollouts else "norm"
    row = found.filter(pl.col("explanation").str.ends_with(name)).row(0, named=True)
    whole = distribution(lens, text).tolist()
    assert row["predicted"] == whole.index(max(whole))
    assert row["probability"] == pytest.approx(max(whole))
    # Of a language model the last token stays.
    last = {12} if head == "CausalLM" else set()
    order = [at for at in rollouts[name][reads].argsort(descending=True).tolist() if at not in last]
    without, only = [], []
    for share in SHARES:
        first = order[: ceil(share * len(order))]
        without.append(
            probability(
                lens, [one for at, one in enumerate(text) if at not in first], row["predicted"]
            )
        )
        only.append(
            probability(
                lens,
                [one for at, one in enumerate(text) if at in {*first, *last}],
                row["predicted"],
            )
        )
    assert row["comprehensiveness"] == pytest.approx(max(whole) - sum(without) / 5, abs=1e-6)
    assert row["sufficiency"] == pytest.approx(max(whole) - sum(only) / 5, abs=1e-6)
    assert found["tokens"].unique().to_list() == [len(order)]


@pytest.mark.parametrize(("family", "head", "_reads"), HEADS)
def test_what_a_decision_needs_is_what_single_runs_without_each_token_lose(family, head, _reads):
    lens, text = classifier(family, head), ids(9)
    found = rationales(lens, [[5], text], draws=2).needed
    last = [8] if head == "CausalLM" else []
    many = 9 - len(last)
    assert found["text"].unique().to_list() == [1]
    assert found["token"].to_list() == [str(one) for one in text[:many]]
    assert found["position"].to_list() == list(range(many))
    whole = distribution(lens, text)
    label, own = int(whole.argmax()), float(whole.max())
    expected = str(label) if head == "CausalLM" else f"LABEL_{label}"
    assert found["answer"].unique().to_list() == [expected]
    changes = [probability(lens, text[:at] + text[at + 1 :], label) - own for at in range(many)]
    assert found["change"].to_list() == pytest.approx(changes, abs=1e-6)
    order = sorted(range(many), key=changes.__getitem__)
    for size in range(1 - len(last), many + 1):
        kept = sorted(order[:size])
        if probability(lens, [text[at] for at in kept + last], label) >= 0.9 * own:
            break
    assert found.filter("enough")["position"].to_list() == kept


def test_what_the_last_token_alone_decides_needs_no_other():
    lens = classifier("gpt2", "CausalLM")
    with torch.no_grad():
        lens.body.wpe.weight.zero_()
        for block in lens.body.h:
            block.attn.c_proj.weight.zero_()
    found = rationales(lens, [ids(9)], draws=2)
    assert found.needed["change"].to_list() == pytest.approx([0] * 8, abs=1e-9)
    assert not found.needed["enough"].any()
    assert (
        "token stay) none alone takes a tenth of the probability or more with it. With all of them taken out at once,"
        in found.summary().text
    )


def test_of_tokens_that_matter_the_attention_of_the_last_token_has_intervals():
    """A mean over heads: each chooses its alternative by itself, so that the ends are the means of their ends."""
    lens = idl.load("bundled-decoder")
    text = " ".join(["The ferry left the harbour before dawn, and nobody came."] * 6)
    found = rationales(lens, [text], draws=1, max_length=70)
    matters = pl.col("enough") | (pl.col("change").abs() >= 0.1 * pl.col("probability"))
    assert found.needed.filter(matters)["lo"].null_count() == 0
    assert found.needed.filter(~matters)["lo"].null_count() == len(found.needed.filter(~matters))
    rows = found.needed.drop_nulls("lo")
    [captured] = lens.capture([text], max_length=70, weights=True)
    each = [certify_row(head.attention[-1], head.projected, tolerance=2**-8, order=False).intervals
            for head in captured.heads]  # fmt: skip
    at = rows["position"].to_list()
    for name, values in (
        ("attention", [head.attention[-1] for head in captured.heads]),
        ("lo", [one.lo for one in each]),
        ("hi", [one.hi for one in each]),
    ):
        assert rows[name].to_list() == pytest.approx(
            torch.stack(values).mean(0)[at].tolist(), abs=1e-6
        )
    assert (rows["hi"] - rows["lo"]).min() > 0.001
    first = rows.sort("change", maintain_order=True).row(0, named=True)
    shown = f"(between {first['lo']:.3f} and {first['hi']:.3f})"
    assert shown in found.summary().text
    assert any(token.note.endswith(shown) for token in found.token_lines()[0].tokens)


def test_a_decision_is_named_as_the_model_names_it_and_another_one_can_be_asked_for(lens):
    lens.model.config.id2label = CLASSES
    text = ids(9)
    whole = distribution(lens, text).tolist()
    least = whole.index(min(whole))
    found = rationales(lens, [text], draws=2)
    assert "asked for" not in found.summary().text
    assert found.needed["answer"][0] == CLASSES[whole.index(max(whole))]
    other = rationales(lens, [text], draws=2, decision=CLASSES[least])
    assert other.needed["answer"][0] == CLASSES[least]
    own = CLASSES[whole.index(max(whole))]
    assert other.needed["own_answer"][0] == found.needed["own_answer"][0] == own
    said = f"as the answer that was asked for; the model's own answer is {own!r}. "
    assert said in other.summary().text
    assert other.needed["probability"][0] == pytest.approx(min(whole))
    assert other.table["predicted"].unique().to_list() == [least]
    with pytest.raises(SettingError, match="classes"):
        rationales(lens, [text], decision="terrible")


@pytest.mark.parametrize(("words", "spaced"), [("harbourmaster", None), (" the sea and", True)])
def test_an_answer_of_several_tokens_is_followed_token_by_token(words, spaced):
    lens, text = idl.load("bundled-decoder"), "She said that the ferry left before"
    given = lens.tokenizer.encode(text)
    made = [
        lens.tokenizer.encode(one, add_special_tokens=False) for one in (words, f" {words.strip()}")
    ]

    def likely(kept, answer):
        with torch.no_grad():
            logits = lens.model(torch.tensor([[*kept, *answer]])).logits[0, -len(answer) - 1 : -1]
        return logits.double().softmax(-1)[range(len(answer)), answer].prod().item()

    answer = max(made, key=lambda one: likely(given, one))
    assert spaced is None or answer == made[1]
    whole = likely(given, answer)
    found = rationales(lens, [text], draws=2, decision=words)
    needed = found.needed
    assert needed["answer"][0] == lens.tokenizer.decode(answer)
    assert needed["probability"].unique().to_list() == pytest.approx([whole], rel=1e-5)
    places = needed["position"].to_list()
    assert places[-1] == len(given) - 2
    changes = [likely(given[:at] + given[at + 1 :], answer) - whole for at in places]
    assert needed["change"].to_list() == pytest.approx(changes, rel=1e-3, abs=whole * 1e-4)
    assert needed["lo"].null_count() == len(needed)
    ids = torch.tensor([given])
    own = lens.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=len(answer), do_sample=False
    )
    assert needed["own_answer"][0] == lens.tokenizer.decode(own[0, len(given) :])
    assert found.table["predicted"].unique().to_list() == [answer[0]]
    own_too = rationales(lens, [text], draws=1, decision=needed["own_answer"][0])
    assert "asked for" not in own_too.summary().text


def test_sets_run_together_as_alone_and_padding_changes_nothing(lens):
    text = ids(9)
    [item] = lens.read([text])
    decision = Decision(lens, item, NUMBERED)
    kept = torch.rand(4, 5, 9, generator=torch.Generator().manual_seed(1)) < 0.5
    kept[..., 0] = True
    kept[1] = kept[0]
    found = decision.probabilities(kept)
    for place in ((0, 0), (1, 3), (3, 4)):
        tokens = torch.tensor(text)[kept[place]].tolist()
        assert float(found[place]) == pytest.approx(
            probability(lens, tokens, decision.labels[0]), abs=1e-6
        )
    assert torch.equal(found[0], found[1])
    longest = max(kept[0].sum(-1))
    batch = torch.zeros(5, longest, dtype=torch.long)
    mask = torch.arange(longest) < kept[0].sum(-1, keepdim=True)
    batch[mask] = torch.cat([torch.tensor(text)[one] for one in kept[0]])
    with torch.no_grad():
        padded = lens.model(input_ids=batch, attention_mask=mask.long()).logits.softmax(-1)[
            :, decision.labels[0]
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
    decision = Decision(lens, item, NUMBERED)
    found = decision.explained(0, True)
    assert list(found)[-3:] == ["gradient_input", "integrated_gradients", "occlusion"]
    inputs = lens.body.embeddings(torch.tensor([ids(7)])).detach()
    for token in range(7):
        zeroed = inputs.clone()
        zeroed[0, token] = 0
        drop = [
            lens.model.classifier(lens.body.pooler(lens.body.encoder(one).last_hidden_state))[
                0, decision.labels[0]
            ]
            for one in (inputs, zeroed)
        ]
        assert float(found["occlusion"][token]) == pytest.approx(
            (drop[0] - drop[1]).item(), abs=1e-6
        )
    assert (found["occlusion"] < 0).any()


def test_attribution_of_a_next_token_is_of_its_logit_at_the_last_position():
    pytest.importorskip("captum", reason="install identilens[faithfulness]")
    lens = classifier("gpt2", "CausalLM")
    [item] = lens.read([ids(7)])
    decision = Decision(lens, item, {(token,): "" for token in range(96)})
    found = decision.explained(0, True)["occlusion"]
    states = HiddenMap(lens, item, whole=True)
    for token in range(6):
        zeroed = states.inputs.clone()
        zeroed[token] = 0
        with torch.no_grad():
            logits = [states.run(one).logits[0, -1] for one in (states.inputs, zeroed)]
        lost = logits[0] - logits[1]
        assert float(found[token]) == pytest.approx(float(lost[decision.labels[0]]), abs=1e-6)


def test_of_few_texts_no_explanation_is_the_best_and_of_enough_only_a_certain_one():
    said = {texts: written(texts).summary() for texts in (9, 10)}
    assert "Too few texts (9) to say which explanation" in said[9].text
    assert "Best at" not in said[9].text
    assert "comprehensiveness" not in said[9].numbers
    assert "Best at finding needed tokens: alti. Probability lost" in said[10].text
    assert len(said[10].headline) == len(said[9].headline) + 2
    unsure = written(12, lucky=0.4).summary()
    assert unsure.text.count("none is surely better than chance; alti comes nearest") == 2
    assert len(unsure.headline) == len(said[9].headline)
