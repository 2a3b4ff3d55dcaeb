"""Conversations: what a model reads of a prompt or of messages, and the segment to which each of its tokens belongs."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from operator import index
from typing import Any

from jinja2 import TemplateError

from identilens.errors import InputError, first_line
from identilens.models.inputs import refuse_half_characters

TEMPLATE = "template"
"""The segment of tokens that the chat template or the tokenizer adds: role headers, the first token."""

SO_FAR = "answer so far"
"""The segment of the answer's tokens."""

REST = "rest of the prompt"
"""Segment of a prompt's tokens that are in no segment that was named."""

SINK = "sink"
"""What a head with a learnt sink gives to no key."""

_MARK = "\ue000{}\ue001"
"""Stands for a message's text where the template is rendered without it; of characters for private use."""

_TURN = re.compile(r"^[ \t]*(system|user|assistant):", re.MULTILINE | re.IGNORECASE)

_SPAN = re.compile(r"(\d+):(\d+)")

Place = str | tuple[int, int]
"""Where a segment is: its words, or its first character and the one after its last."""


@dataclass(frozen=True)
class Chat:
    """A conversation up to the turn of the model.

    Attributes:
        prompt: Text that the model continues; empty if there are messages.
        messages: Role and text of each message, in order.
        answer: The model's answer, if it is given.
        segments: Further segments by name, each with its place in the text that the model reads.
    """

    prompt: str = ""
    messages: Sequence[tuple[str, str]] = ()
    answer: str | None = None
    segments: Mapping[str, Place] = field(default_factory=dict)

    @classmethod
    def read(cls, source: Any, number: int) -> "Chat":
        """Return a conversation from a prompt, a list of messages, or a mapping with one of them.

        A last message of the assistant is the answer.

        Raises:
            InputError: For anything else, and for an empty prompt, message or answer.
        """
        if isinstance(source, Chat):
            return source
        kind = "prompt" if isinstance(source, str) else "messages"
        fields: Mapping[str, Any] = source if isinstance(source, Mapping) else {kind: source}
        other = InputError(
            f"conversation {number}: expected a prompt, a list of messages with role and content, or a mapping with "
            f"one of them, and answer and segments if wanted; got {source!r:.80}."
        )
        both_or_none = ("prompt" in fields) == ("messages" in fields)
        if both_or_none or fields.keys() - {"prompt", "messages", "answer", "segments"}:
            raise other
        try:
            turns = [
                (turn["role"], _content(turn["content"])) for turn in fields.get("messages", [])
            ]
            segments = {name: read_place(part) for name, part in fields.get("segments", {}).items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            raise other from None
        prompt, answer = fields.get("prompt", ""), fields.get("answer")
        if answer is None and turns and turns[-1][0] == "assistant":
            answer = turns.pop()[1]
        texts = [text for _, text in turns] or [prompt]
        texts += [] if answer is None else [answer]
        if not all(isinstance(text, str) and text.strip() for text in texts):
            raise InputError(
                f"conversation {number}: the prompt, a message or the answer is empty or not a text (its parts may be "
                "texts alone). Give each at least one word, or remove it."
            )
        for text in texts:
            refuse_half_characters(text, f"conversation {number}")
        if taken := {TEMPLATE, SO_FAR, SINK} & segments.keys():
            raise InputError(
                f"conversation {number}: the segment {min(taken)!r} has a meaning of its own. Choose another name."
            )
        return cls(prompt, tuple(turns), answer, segments)


@dataclass(frozen=True)
class Prompt:
    """What a model reads of a conversation: token ids, the segment of each, and words of segments of the answer."""

    ids: list[int]
    segments: list[str]
    later: Mapping[str, str]


def typed_chat(text: str) -> Any:
    r"""Return what a typed text stands for, as `read_chats` takes it: JSON, turns, or a prompt.

    Turns begin with ``system:``, ``user:`` or ``assistant:`` at the start of a line, the first of them at the start of
    the text.

    Examples:
        >>> from identilens.models.chats import typed_chat
        >>> typed_chat("user: Who came?\nassistant: Nobody.")
        [{'role': 'user', 'content': 'Who came?'}, {'role': 'assistant', 'content': 'Nobody.'}]
        >>> typed_chat("Nobody came.")
        'Nobody came.'
    """
    if text.lstrip()[:1] in ("[", "{"):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    before, *turns = _TURN.split(text)
    if before.strip() or not turns:
        return text
    turned = zip(turns[::2], turns[1::2], strict=True)
    return [{"role": role.lower(), "content": content.strip()} for role, content in turned]


def read_chats(source: Any) -> list[Chat]:
    """Return conversations from one or a list of them; see `Chat.read`.

    Raises:
        InputError: If there is none, or one cannot be used.
    """
    several = isinstance(source, list | tuple)
    messages = several and any(isinstance(turn, Mapping) and "role" in turn for turn in source)
    chats = source if several and not messages else [source]
    if not chats:
        raise InputError("expected a prompt, messages, or a list of conversations; got none.")
    return [Chat.read(chat, number) for number, chat in enumerate(chats)]


def read_prompt(tokenizer: Any, chat: Chat, number: int) -> Prompt:
    """Return what a model reads of a conversation, by the tokenizer's chat template if there are messages.

    Each token belongs to one segment, by most of its characters other than spaces: a message, one of the conversation's
    segments, or `TEMPLATE`. Messages are named by their roles; the last one of the user is the question. Words that are
    not there are looked for in the answer: see `answer_segments`.

    Raises:
        InputError: Without a tokenizer that knows the place of each token, or a chat template for messages; for a
            template that refuses the messages or changes their texts; for a segment that is not found.
    """
    if not getattr(tokenizer, "is_fast", False):
        raise InputError(
            "segments need a tokenizer that knows the characters of each token (a fast one). Load the model with its "
            "tokenizer.json, or pass such a tokenizer to Lens."
        )
    named = REST if chat.segments else "prompt"
    text, spans = chat.prompt, {named: [(0, len(chat.prompt))]}
    if chat.messages:
        text, spans = _templated(tokenizer, chat.messages, number)
    letters, later = [TEMPLATE] * len(text), {}
    for name, parts in spans.items():
        for start, end in parts:
            letters[start:end] = [name] * (end - start)
    for name, part in chat.segments.items():
        where = f"conversation {number}, segment {name!r}"
        if isinstance(part, str) and part not in text:
            later[name] = part
            continue
        start, end = _span(part, text, where) if isinstance(part, str) else part
        if not 0 <= start < end <= len(text):
            raise InputError(
                f"{where}: expected characters within the {len(text):,} that the model reads; got {start}:{end}."
            )
        if crossed := chat.segments.keys() & set(letters[start:end]):
            raise InputError(
                f"{where}: it overlaps with {min(crossed)!r}, and a token belongs to one segment. Name parts that do "
                "not overlap."
            )
        letters[start:end] = [name] * (end - start)
    read = tokenizer(
        text,
        add_special_tokens=not chat.messages,
        return_offsets_mapping=True,
        verbose=False,
    )
    segments = _of_tokens(letters, text, read["offset_mapping"], TEMPLATE)
    return Prompt(list(read["input_ids"]), segments, later)


def answer_segments(
    tokenizer: Any, prompt: Prompt, answer: Sequence[int], number: int
) -> list[str]:
    """Return the segment of each token of an answer: one that the prompt does not have, or `SO_FAR`.

    Raises:
        InputError: For words that are not once in the answer either.
    """
    text = tokenizer.decode(answer)
    letters = [SO_FAR] * len(text)
    for name, words in prompt.later.items():
        start, end = _span(words, text, f"conversation {number}, segment {name!r}")
        letters[start:end] = [name] * (end - start)
    ends = [len(tokenizer.decode(answer[:count])) for count in range(len(answer) + 1)]
    return _of_tokens(letters, text, pairwise(ends), SO_FAR)


def _of_tokens(
    letters: Sequence[str], text: str, spans: Iterable[tuple[int, int]], otherwise: str
) -> list[str]:
    """Return the segment of each token, by most of its characters other than spaces."""
    return [
        Counter(
            [letters[char] for char in range(start, end) if not text[char].isspace()]
            or letters[start:end]
            or [otherwise]
        ).most_common(1)[0][0]
        for start, end in spans
    ]


def _span(words: str, text: str, where: str) -> tuple[int, int]:
    """Return the characters of words that a text has once."""
    if text.count(words) == 1:
        start = text.index(words)
        return start, start + len(words)
    raise InputError(
        f"{where}: expected a part of what the model reads, or of its answer; its words occur {text.count(words)} "
        f"times there. Give words that occur once, or characters (120:480). The text begins with {text[:40]!r}."
    )


def _templated(
    tokenizer: Any, messages: Sequence[tuple[str, str]], number: int
) -> tuple[str, dict[str, list[tuple[int, int]]]]:
    """Return messages as the template writes them, and where the text of each message stands.

    The template is also rendered with a mark in place of each text: what stands between the marks is its own.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise InputError(
            "the tokenizer has no chat template, so that messages have no form that the model knows. Give a prompt, "
            'with its parts as segments if wanted: {"prompt": "…", "segments": {"name": "words"}}; or choose a model '
            "or tokenizer with a chat template."
        )

    def rendered(texts: Sequence[str]) -> str:
        turns = [
            {"role": role, "content": text} for (role, _), text in zip(messages, texts, strict=True)
        ]
        try:
            return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise InputError(
                f"conversation {number}: the tokenizer's chat template refuses the messages "
                f"({first_line(error)})."
            ) from error

    full = rendered([text for _, text in messages])
    pieces = re.split(_MARK.format(r"(\d+)"), rendered([*map(_MARK.format, range(len(messages)))]))
    roles = [role for role, _ in messages]
    if roles[-1] == "user":
        roles[-1] = "question"
    # With a number if several have the role; the last message of the user is the question.
    names = [
        f"{role} {1 + roles[:turn].count(role)}" if roles.count(role) > 1 else role
        for turn, role in enumerate(roles)
    ]
    if left_out := [name for turn, name in enumerate(names) if str(turn) not in pieces[1::2]]:
        raise InputError(
            f"conversation {number}: the tokenizer's chat template leaves out {', '.join(left_out)}, so that the model "
            "does not read it. Give the conversation without it, or a prompt as the model reads it."
        )
    written, spans = pieces[0], {}
    for mark, piece in zip(pieces[1::2], pieces[2::2], strict=True):
        text = messages[int(mark)][1]
        # Templates leave a text as it is, or cut the spaces around it, some of them only those of some roles.
        if not full.startswith(written + text + piece):
            text = text.strip()
        spans.setdefault(names[int(mark)], []).append((len(written), len(written) + len(text)))
        written += text + piece
    if written == full:
        return full, spans
    raise InputError(
        f"conversation {number}: the tokenizer's chat template changes the texts of messages, so that their tokens "
        "cannot be told apart. Write the prompt as the model reads it: "
        '{"prompt": "…", "segments": {"name": "words"}}.'
    )


def read_place(source: Any) -> Place:
    """Return where a segment is: words, or two characters that are given as a pair or as ``120:480``.

    Raises:
        TypeError: For anything else.
    """
    if not isinstance(source, str):
        start, end = source
        return index(start), index(end)
    match = _SPAN.fullmatch(source)
    return (int(match[1]), int(match[2])) if match else source


def _content(content: Any) -> Any:
    """Return the content of a message; parts that are texts, as chat services take them, are joined."""
    if not isinstance(content, list) or any(part.get("type") != "text" for part in content):
        return content
    return "".join(part["text"] for part in content)
