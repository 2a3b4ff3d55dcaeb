"""What decisions need; explanations of them tested by taking tokens out."""

from math import ceil

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.chats import greedy, log_probabilities
from helpers.heads import seeded
from helpers.zoo import classifier, ids
from identilens.errors import InputError, SettingError
from identilens.models.rollouts import final_rollouts
from identilens.studies.faithfulness import decisions
from identilens.studies.faithfulness.decisions import decide

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
CLASSES = dict(enumerate(("bad", "mixed", "good")))
HEADS = [
    ("bert", "SequenceClassification", 0), ("gpt2", "SequenceClassification", -1), ("gpt2", "CausalLM", -1),
    ("llama", "CausalLM", -1),
]  # fmt: skip
"""Family, task, and the position whose final state decides."""


def decided(lens, texts, decision="", **options):
    return idl.faithfulness(lens, texts, decision=decision, **{"draws": 2, **options})


def decision_on(lens, text):
    [item] = lens.read([text])
    return decide(lens, item, "")


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
def test_scores_and_needed_tokens_are_those_of_single_runs(family, head, reads):
    lens, text = classifier(family, head), ids(13)
    found = decided(lens, [[5], text])
    [item] = lens.read([text])
    rollouts = final_rollouts(lens, item)
    name = "alti" if "alti" in rollouts else "norm"
    rows = found.table.filter(pl.col("explanation").str.ends_with(name))
    areas = dict(rows.select("intervention", "aopc").iter_rows())
    whole = distribution(lens, text)
    label, own = int(whole.argmax()), float(whole.max())
    # Of a language model the last token stays.
    last = [12] if head == "CausalLM" else []
    many = 13 - len(last)
    order = [at for at in rollouts[name][reads].argsort(descending=True).tolist() if at < many]
    without, only = [], []
    for share in SHARES:
        first = order[: ceil(share * many)]
        kept = [one for at, one in enumerate(text) if at not in first]
        without.append(own - probability(lens, kept, label))
        kept = [text[at] for at in sorted(first) + last]
        only.append(own - probability(lens, kept, label))
    assert areas["without"] == pytest.approx(sum(without) / 5, abs=1e-6)
    assert areas["alone"] == pytest.approx(-sum(only) / 5, abs=1e-6)
    assert found.table["parts"].unique().to_list() == [many]
    needed = found.needed
    assert needed["text"].unique().to_list() == [1]
    assert needed["token"].to_list() == [str(one) for one in text[:many]]
    expected = str(label) if head == "CausalLM" else f"LABEL_{label}"
    assert needed["answer"].unique().to_list() == [expected]
    changes = [probability(lens, text[:at] + text[at + 1 :], label) - own for at in range(many)]
    assert needed["change"].to_list() == pytest.approx(changes, abs=1e-6)
    order = sorted(range(many), key=changes.__getitem__)
    for size in range(1 - len(last), many + 1):
        kept = sorted(order[:size])
        if probability(lens, [text[at] for at in kept + last], label) >= 0.9 * own:
            break
    assert needed.filter("enough")["position"].to_list() == kept


def test_what_the_last_token_alone_decides_needs_no_other():
    lens = classifier("gpt2", "CausalLM")
    with torch.no_grad():
        lens.body.wpe.weight.zero_()
        for block in lens.body.h:
            block.attn.c_proj.weight.zero_()
    found = decided(lens, [ids(9)])
    assert found.needed["change"].to_list() == pytest.approx([0] * 8, abs=1e-9)
    assert not found.needed["enough"].any()
    assert "enough for nine tenths: what always stays." in found.summary().text


def test_a_decision_is_named_as_the_model_names_it_and_another_one_can_be_asked_for(lens):
    lens.model.config.id2label = CLASSES
    text = ids(9)
    whole = distribution(lens, text).tolist()
    least, own = whole.index(min(whole)), CLASSES[whole.index(max(whole))]
    found = decided(lens, [text])
    assert found.needed["answer"][0] == found.needed["own_answer"][0] == own
    other = decided(lens, [text], CLASSES[least])
    assert other.needed["answer"][0] == CLASSES[least]
    assert other.needed["own_answer"][0] == own
    assert f"(the model's own: {own!r})" in other.summary().text
    assert other.needed["probability"][0] == pytest.approx(min(whole))
    with pytest.raises(SettingError, match="classes"):
        decided(lens, [text], "terrible")
    with pytest.raises(InputError, match="classifies texts, or predicts"):
        decided(idl.Lens(lens.body), [text])


@pytest.mark.parametrize(("words", "spaced"), [("harbourmaster", None), (" the sea and", True)])
def test_an_answer_of_several_tokens_is_followed_token_by_token(words, spaced):
    lens, text = idl.load("bundled-decoder"), "She said that the ferry left before"
    given = lens.tokenizer.encode(text)
    made = [
        lens.tokenizer.encode(one, add_special_tokens=False) for one in (words, f" {words.strip()}")
    ]

    def likely(kept, answer):
        return log_probabilities(lens, kept, answer).sum().exp().item()

    answer = max(made, key=lambda one: likely(given, one))
    assert spaced is None or answer == made[1]
    whole = likely(given, answer)
    needed = decided(lens, [text], words).needed
    assert needed["answer"][0] == lens.tokenizer.decode(answer)
    assert needed["probability"].unique().to_list() == pytest.approx([whole], rel=1e-5)
    places = needed["position"].to_list()
    assert places[-1] == len(given) - 2
    changes = [likely(given[:at] + given[at + 1 :], answer) - whole for at in places]
    assert needed["change"].to_list() == pytest.approx(changes, rel=1e-3, abs=whole * 1e-4)
    own = greedy(lens, given, len(answer))[0, len(given) :]
    assert needed["own_answer"][0] == lens.tokenizer.decode(own)


def test_sets_run_together_as_alone_and_padding_changes_nothing(lens):
    text = ids(9)
    decision = decision_on(lens, text)
    kept = torch.rand(15, 9, generator=seeded(1)) < 0.5
    kept[:, 0] = True
    kept[3] = kept[0]
    found = decisions.alone(decision, kept) + decision.probability
    for place in (0, 8, 14):
        tokens = torch.tensor(text)[kept[place]].tolist()
        assert float(found[place]) == pytest.approx(
            probability(lens, tokens, decision.labels[0]), abs=1e-6
        )
    assert found[0] == found[3]
    alone = decided(lens, [text]).table
    wide = torch.tensor([[0] * 3 + text, [0] * 3 + text])
    left = {"input_ids": wide, "attention_mask": (torch.arange(12) > 2).long().expand(2, -1)}
    together = decided(lens, left).table
    assert_frame_equal(together.filter(text=0), alone, abs_tol=1e-9)
