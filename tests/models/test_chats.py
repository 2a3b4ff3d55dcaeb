"""Conversations: segments of what templates write, documents within messages, files, and what is refused."""

import pytest

import identilens as idl
from helpers.chats import MESSAGES, TEMPLATES, tokenizer
from identilens.cli.options import ChatOptions
from identilens.errors import InputError, SettingError
from identilens.models.chats import read_chats, read_prompt
from identilens.models.spelling import Spelling

PROMPT = "snow fell on the harbour, and nobody came."


@pytest.mark.parametrize("family", TEMPLATES)
def test_segments_cover_every_token_of_a_chat_once(family):
    made = tokenizer(family)
    [chat] = read_chats(MESSAGES)
    prompt = read_prompt(made, chat, 0)
    ids = made.apply_chat_template(MESSAGES, add_generation_prompt=True, return_dict=False)
    assert prompt.ids == ids
    assert len(prompt.segments) == len(ids)
    pieces = {}
    for name, number in zip(prompt.segments, prompt.ids, strict=True):
        pieces.setdefault(name, []).append(number)
    texts = {name: made.decode(numbers) for name, numbers in pieces.items()}
    kept = "  snow fell.  " if family == "chatml" else "snow fell."
    assert texts["system"] == ("be brief." if family == "llama3" else "be brief. ")
    assert texts["user"] == kept
    assert texts["assistant"] == "where?"
    assert texts["question"] == "on the harbour."
    assert "harbour" not in texts["template"]
    assert set(texts) == {"system", "user", "assistant", "question", "template"}


def test_documents_are_segments_of_a_message_and_tokens_go_where_most_of_their_characters_are():
    decoder = idl.load("bundled-decoder")
    [chat] = read_chats(
        {"prompt": PROMPT, "segments": {"document 1": "w fell on", "document 2": "12:40"}}
    )
    prompt = read_prompt(decoder.tokenizer, chat, 0)
    offsets = decoder.tokenizer(PROMPT, return_offsets_mapping=True)["offset_mapping"]
    spans = {"document 1": (3, 12), "document 2": (12, 40)}
    for (start, end), name in zip(offsets, prompt.segments, strict=True):
        inside = {one: max(0, min(end, b) - max(start, a)) for one, (a, b) in spans.items()}
        inside["rest of the prompt"] = end - start - sum(inside.values())
        assert name == "template" if start == end else inside[name] == max(inside.values())
    assert {"document 1", "document 2", "rest of the prompt"} < set(prompt.segments)


def test_a_file_that_has_no_messages_is_named(tmp_path):
    (tmp_path / "broken.json").write_text("[")
    for name, reason in (
        ("none.json", "none.json cannot be read: .*No such file"),
        (tmp_path / "broken.json", r"broken.json cannot be read as JSON"),
    ):
        with pytest.raises(InputError, match=reason):
            ChatOptions(chat=str(name)).load()


def test_an_answer_belongs_to_a_single_conversation():
    [chat] = ChatOptions(prompt=("Snow fell.",), answer="Nobody came.").load()
    assert chat.answer == "Nobody came."
    with pytest.raises(SettingError, match="a single conversation, not 2"):
        ChatOptions(prompt=("Snow fell.", "It rained."), answer="Nobody came.").load()


def prompted(template, chat=MESSAGES):
    made = tokenizer("chatml")
    made.chat_template = template
    [read] = read_chats([chat] if isinstance(chat, dict) else chat)
    return read_prompt(made, read, 0)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{% for m in messages %}{% if m.role != 'assistant' %}{{ m.content }} {% endif %}{% endfor %}",
         "leaves out assistant, so that the model does not read it"),
        ("nothing", "leaves out system, user, assistant, question"),
        ("{% for one in range(10**9) %}{% endfor %}", "chat template refuses the messages"),
    ],
)  # fmt: skip
def test_hostile_chat_templates_are_refused(template, why):
    with pytest.raises(InputError, match=why):
        prompted(template)


@pytest.mark.parametrize(
    ("chat", "why"),
    [
        ([{"role": "user", "content": "a \ud800 b"}], "conversation 0 has half a character"),
        ({"prompt": "a \udfff"}, "conversation 0 has half a character"),
        ({"prompt": "Snow fell", "segments": {"a": [0.9, 3.9]}}, "conversation 0: expected a prompt"),
        ({"prompt": "Snow on snow", "segments": {"a": "now"}}, "segment 'a'.*its words occur 2 times"),
        ([{"role": "user", "content": [{"type": "image", "url": "x"}]}], "parts may be texts alone"),
        ([{"role": "user", "content": [{"text": "x"}]}], "parts may be texts alone"),
        ([{"role": "user", "content": ["x"]}], "conversation 0: expected a prompt"),
    ],
)  # fmt: skip
def test_what_is_no_conversation_is_refused_saying_why(chat, why):
    with pytest.raises(InputError, match=why):
        read_prompt(tokenizer("chatml"), *read_chats(chat), 0)


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
