"""Words in a text: the runs of tokens that spell them, by characters and by names."""

import pytest

import identilens as idl
from identilens.models.spelling import Spelling


@pytest.mark.parametrize(
    ("tokens", "words", "runs"),
    [
        (("[CLS]", "the", "Sto", "##rm", "the", "storm", "a"), "storm", [(2, 4), (5, 6)]),
        (("[CLS]", "the", "Sto", "##rm", "the", "storm", "a"), "THE  storm", [(1, 4), (4, 6)]),
        ((" the", " sh", "ip", " the"), "the ship", [(0, 3)]),
        ((" the", " sh", "ip", " the"), "the", [(0, 1), (3, 4)]),
        ((" the", " sh", "ip", " the"), "ship the", [(1, 4)]),
        (("\n", "the", "storm", "\n"), "the storm", [(1, 3)]),
        (("a", "b"), "a b", [(0, 2)]),
        (("a", "b"), "ab c", []),
        (("x", "ab"), "a", []),
        (("STRASSE",), "straße", [(0, 1)]),
    ],
)
def test_runs_by_names(tokens, words, runs):
    assert Spelling(tokens).runs(words) == runs


@pytest.mark.parametrize(
    ("model", "text", "words", "characters"),
    [
        ("bundled", "A café by the harbour.", "café", (2, 6)),
        ("bundled", "A café by the harbour.", "cafe", (2, 6)),
        ("bundled", "A Cafe\u0301 by the harbour.", "CAFÉ", (2, 6)),
        ("bundled-decoder", "Snow 雪 fell.", "雪", (5, 6)),
        ("bundled-decoder", "Snow fell 🙂 again.", "🙂", (10, 11)),
        ("bundled-decoder", "🙂🙂 fell", "🙂 fell", (1, 7)),
    ],
)
def test_runs_by_characters(model, text, words, characters):
    """Also where an accent is stripped, or a character takes several tokens of bytes."""
    item = idl.load(model).read(text)[0]
    spelling = Spelling.of(item, "encoder", item.tokens["encoder"])
    ((start, end),) = spelling.runs(words)
    assert (item.spans[start][0], item.spans[end - 1][1]) == characters
    assert Spelling.of(item, "decoder", item.tokens["encoder"]).spans == ()


def test_each_character_of_several_tokens_is_a_run():
    spans = ((0, 0), (0, 1), (0, 1), (1, 2), (1, 2), (2, 3), (0, 0), (0, 0))
    spelling = Spelling(("<s>", "p", "q", "p", "q", "x", "</s>", "</s>"), "🙂🙂x", spans)
    assert spelling.runs("🙂") == [(1, 3), (3, 5)]
    assert spelling.runs("🙂x") == [(3, 6)]
    assert spelling.runs("</s>") == [(6, 7), (7, 8)], "special tokens have names alone"
