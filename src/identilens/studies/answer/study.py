"""Where the attention of an answer lies: the segments of a conversation, and what of it is certain."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from itertools import compress
from math import prod
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
from annotated_types import Gt, Le
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from identilens.claims import ClaimRow
from identilens.errors import InputError, SettingError, UnsupportedModelError
from identilens.models.chats import SINK, SO_FAR, TEMPLATE, Chat, Prompt, read_chats, read_prompt
from identilens.models.continuations import answer_ids
from identilens.models.explaining import explained
from identilens.models.families import position_limit
from identilens.models.heads import CapturedLayer
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, evaluation_mode
from identilens.models.layout import Site, chosen_heads
from identilens.models.lens import Lens
from identilens.runs.matrices import MatrixKey
from identilens.runs.provenance import Identity
from identilens.runs.settings import NonNegative, Numbers, Positive, Settings, Tolerances
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.answer.result import Answers
from identilens.studies.answer.rows import (
    Heads,
    drawn_rows,
    segment_claims,
    segment_ends,
    segment_masses,
)
from identilens.studies.heads import LensStudy
from identilens.studies.outcomes import tolerances

_KEYS, _ROWS, _LEAST = 4_000, 512, 2
"""Keys of the rows that are bounded by default for each token of an answer, rows of all tokens, and the fewest rows."""

_TAIL = 60
"""Last characters of an answer that are shown while it is generated."""


class _Told(BaseStreamer):
    """Passes on the ids of an answer while it is generated."""

    def __init__(self, tell: Callable[[list[int]], None]) -> None:
        self._tell = tell
        self._ids: list[int] | None = None

    def put(self, value: Tensor) -> None:
        """Take new ids; the first are those of the prompt."""
        if self._ids is None:
            self._ids = []
            return
        self._ids += value.flatten().tolist()
        self._tell(self._ids)

    def end(self) -> None:
        """Take the end of the answer."""


@torch.no_grad()
def generated(
    lens: Lens,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Mapping[str, Any],
    seed: int,
    tell: Callable[[list[int]], None],
) -> list[int]:
    """Return the ids of the answer by the model's own ``generate`` and cache, a stop token included.

    It takes the most likely token each time, or draws with a temperature in ``sampling``; all other settings are those
    of the model's generation configuration. Random numbers of the caller stay as they are.
    """
    drawn = sampling["temperature"] is not None
    prompt = torch.tensor([list(ids)], device=lens.device)
    stop = lens.model.generation_config.eos_token_id
    padding = stop[0] if isinstance(stop, list) else stop
    devices = [lens.device] if lens.device.type == "cuda" else []
    with (
        torch.random.fork_rng(devices),
        evaluation_mode(lens.model),
        explained(type(lens.model).__name__),
    ):
        torch.manual_seed(seed)
        generate: Any = lens.model.generate
        output = generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_new_tokens,
            do_sample=drawn,
            num_beams=1,
            use_cache=True,
            pad_token_id=padding,
            return_dict_in_generate=False,
            streamer=_Told(tell),
            **sampling,
        )
    return output[0, len(ids) :].tolist()


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(Settings):
    """How the answer is generated, and which rows of attention are bounded.

    Attributes:
        max_new_tokens: Largest number of tokens that are generated. The model's stop token ends an answer earlier.
        temperature: Draw each token with this temperature. Default: take the most likely one.
        top_p: Draw from the most likely tokens that together have this probability. With a temperature.
        top_k: Draw from this number of most likely tokens. With a temperature.
        bounded: Rows of attention that are bounded for each token of the answer, drawn evenly over layers where
            these are not all. Default: 4,000 over the tokens of the longest prompt and answer, or 512 over those of the
            longest answer if that is less, and 2 or more: some ten seconds. Attention itself is measured in all rows.
        tolerance: How much a head's output may change and count as the same: 0, a share (0.01, 1%) or a rounding
            (model, bfloat16, float16, float32).
        needed: Also run the model without each segment of the prompt, once for each, and take the probability of the
            answer again.
        matrices: Save the weights of the answer's rows over all keys, for every head.
        layers: Layers, counted from 0; all by default.
        heads: Heads, counted from 0; all by default.
        seed: Seed of the drawn tokens and rows.
    """

    max_new_tokens: Positive = 64
    temperature: Annotated[float | None, Gt(0)] = None
    top_p: Annotated[float | None, Gt(0), Le(1)] = None
    top_k: Positive | None = None
    bounded: NonNegative | None = None
    tolerance: Tolerances | None = ("0", "bfloat16")
    needed: bool = True
    matrices: bool = False
    layers: Numbers | None = None
    heads: Numbers | None = None
    seed: NonNegative = 0

    @property
    def sampling(self) -> dict[str, Any]:
        """The settings by which tokens are drawn."""
        return {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}

    def check(self) -> None:
        """Check that tolerances can be read, and that tokens are drawn where their draw has settings."""
        tolerances(self.tolerance, "head", "float32")
        for name in ("top_p", "top_k"):
            if self.temperature is None and getattr(self, name) is not None:
                raise SettingError(name, "with a temperature", getattr(self, name))


class AnswerStudy(LensStudy[AnswerSettings, Answers]):
    """Say where the attention of an answer lies, how much of that is certain, and what of its prompt the answer needs.

    The model answers a prompt or messages, or the answer is given. One pass over prompt and answer measures the rows of
    the answer's tokens: row t − 1 predicts token t. For each token, layer, head and segment (system, messages,
    documents, question, answer so far, template): the attention, and for drawn rows its proven ends over all
    alternatives with the same output of the head. What the answer needs is another question: each segment is taken out
    of the prompt alone, and the probability of the answer is taken again. Words and limits: docs/answer.md.

    Args:
        lens: The model.
        chats: A prompt; a list of messages, each with ``role`` and ``content``; a mapping with ``prompt`` or
            ``messages``, and ``answer`` and ``segments`` (by name: words, or first character and the one after the
            last) if wanted; or a list of these.

    Raises:
        InputError: For conversations that cannot be used, messages for a tokenizer without a chat template, or more
            tokens than the model has positions.
        UnsupportedModelError: If the model's attention cannot be captured faithfully, it reads both sides, or it
            cannot generate.
        NumericalError: If an end cannot be proven.
        OutputFolderError: If ``out`` contains something else or cannot be written.

    Examples:
        >>> import identilens as idl
        >>> lens = idl.load("bundled-decoder")
        >>> chat = {"prompt": idl.examples()[0], "segments": {"first words": "0:60"}}
        >>> found = idl.answer(lens, chat, max_new_tokens=2)
        >>> found.segments().select("segment", "tolerance", "mass", "lo", "hi").filter(segment="first words")
        shape: (2, 5)
        ┌─────────────┬───────────┬──────────┬──────────┬──────────┐
        │ segment     ┆ tolerance ┆ mass     ┆ lo       ┆ hi       │
        │ ---         ┆ ---       ┆ ---      ┆ ---      ┆ ---      │
        │ str         ┆ str       ┆ f64      ┆ f64      ┆ f64      │
        ╞═════════════╪═══════════╪══════════╪══════════╪══════════╡
        │ first words ┆ 0         ┆ 0.180488 ┆ 0.112824 ┆ 0.290712 │
        │ first words ┆ bfloat16  ┆ 0.180488 ┆ 0.080842 ┆ 0.366698 │
        └─────────────┴───────────┴──────────┴──────────┴──────────┘
    """

    name = "answer"
    unit = "steps"
    takes = ("lens", "chats")
    settings_type = AnswerSettings
    result_type = Answers

    def __init__(self, lens: Lens, chats: Any, settings: AnswerSettings) -> None:
        super().__init__(settings)
        self.lens, self.chats = lens, read_chats(chats)
        if lens.model.config.is_encoder_decoder:
            raise UnsupportedModelError(
                f"{type(lens.model).__name__} reads the prompt with an encoder of its own. Choose a model with a "
                "decoder only, or certify its heads."
            )
        self.parts = [
            read_prompt(lens.tokenizer, chat, number) for number, chat in enumerate(self.chats)
        ]
        lengths = [
            self._lengths(number, len(prompt.ids), max(self._given(chat), key=len, default=None))
            for number, (chat, prompt) in enumerate(zip(self.chats, self.parts, strict=True))
        ]
        whole, new = map(max, zip(*lengths, strict=True))
        # The same for all conversations, so that each row is drawn with the same probability.
        bounded, most = settings.bounded, max(_LEAST, min(_KEYS // whole, _ROWS // new))
        self._bounded = most if bounded is None else bounded
        if any(chat.answer is None for chat in self.chats) and not lens.model.can_generate():
            raise UnsupportedModelError(
                f"{type(lens.model).__name__} has no head that predicts tokens, so it cannot generate. Load a causal "
                "language model, or give the answer."
            )
        sites = lens.sites(self._item(self.parts[0].ids))
        if any(site.kind != "decoder" for site in sites):
            raise UnsupportedModelError(
                f"{type(lens.model).__name__} reads tokens on both sides, so it generates no answer. Choose a causal "
                "language model."
            )
        self._sites, self._heads = sites, _by_call(sites, settings)
        self._tolerances = tolerances(settings.tolerance, "head", lens.dtype)

    def identity(self) -> Identity:
        """Return the model and the conversations."""
        texts = [
            f"{prompt.ids} {prompt.segments} {self._given(chat)}"
            for chat, prompt in zip(self.chats, self.parts, strict=True)
        ]
        return Identity(self.lens.facts, texts)

    def sizes(self) -> Sequence[int]:
        """Return the tokens to generate and the layers to measure for each conversation."""
        new = self.settings.max_new_tokens
        return [len(self._sites) + (new if chat.answer is None else 0) for chat in self.chats]

    def run(self, part: int) -> Output:
        """Return the attention of one answer."""
        settings, prompt = self.settings, self.parts[part]
        answer = self._answer(part)
        ids, first = [*prompt.ids, *answer], len(prompt.ids)
        own = [*prompt.segments, *[SO_FAR] * len(answer)]
        drawn = drawn_rows(self._heads, len(answer), self._bounded, settings.seed, part)
        claims, names = segment_claims(own), [*dict.fromkeys(own), SINK]
        frames, bounded, matrices = [], [], {}

        def measure(call: AttentionCall) -> Tensor:
            """Measure the rows of the answer's tokens: row t − 1, whose output predicts token t, is that of token t."""
            if call.index in self._heads:
                rows = call.rows(range(first - 1, len(ids) - 1))
                layer = CapturedLayer.of(rows, self._sites[call.index], *rows.attend())
                row = ClaimRow(layer.head(0), first - 1, [*own, SINK], part)
                costs = torch.stack([one.counting(row) for one in claims.values()])  # pyright: ignore
                for number in self._heads[call.index]:
                    head = layer.head(number)
                    at = {"text": part, "layer": head.layer, "head": number}
                    masses = segment_masses(head, costs[: len(names)]).numpy()
                    token, segment = np.indices(masses.shape).reshape(2, -1)
                    named = pl.Series(names).gather(segment)
                    columns = {"token": token, "segment": named, "mass": masses.flatten()}
                    frames.append(pl.DataFrame({**at, **columns}))
                    if settings.matrices:
                        key = MatrixKey(part, head.layer, number, "decoder", "raw")
                        matrices[str(key)] = head.attention.float()
                    for chosen, token in drawn[call.index]:
                        if chosen == number:
                            ends = segment_ends(head, token, claims, costs, self._tolerances)
                            bounded.extend({"text": part, **one} for one in ends)
            self.tell(f"attention {call.index}", self.sizes()[part] - len(self._sites) + call.index)
            return call.run()

        likely = self._pass(ids, len(answer), measure)
        needed = self._without(part, prompt, answer) if settings.needed else []
        unknown = {"probability": None, "rank": None}
        tokens = [
            {"text": part, "position": at, "token": token, "segment": segment}
            | {"answer": at - first if at >= first else None, **likely.get(at, unknown)}
            for at, (token, segment) in enumerate(
                zip(self.lens.reader.names(ids), own, strict=True)
            )
        ]
        # The sink is a segment where some head has one.
        table = pl.concat(frames).select(*Answers.schema["table"])
        some = (pl.col("segment") != SINK) | (pl.col("mass") > 0).any().over("segment")
        table = table.cast(pl.Schema(Answers.schema["table"])).filter(some)
        ends = table_of(Answers.schema["differences"], bounded)
        known = pl.col("segment").is_in(table["segment"].unique().to_list())
        tables = {
            "table": table,
            "intervals": ends.filter(known, pl.col("other").is_null()).drop("other"),
            "differences": ends.drop_nulls("other"),
            "positions": table_of(Answers.schema["positions"], tokens),
            "needed": table_of(Answers.schema["needed"], needed),
        }
        read = {part: {"encoder": [one["token"] for one in tokens]}} if matrices else {}
        return Output(tables, matrices, read)

    def _without(self, part: int, prompt: Prompt, answer: Sequence[int]) -> list[Row]:
        """Return the probability of each token of the answer without each segment that can be taken out."""
        found = []
        for segment in dict.fromkeys(prompt.segments):
            # The answer is what follows the last token, which stays.
            kept = [own != segment for own in prompt.segments[:-1]] + [True]
            if segment == TEMPLATE or all(kept):
                continue
            ids = [*compress(prompt.ids, kept), *answer]
            self.tell(f"without {segment}", self.sizes()[part])
            found += [
                {"text": part, "segment": segment, "token": at, "without": one["probability"]}
                for at, one in enumerate(self._pass(ids, len(answer)).values())
            ]
        return found

    def _pass(
        self, ids: Sequence[int], tokens: int, rows: Callable[[AttentionCall], Tensor] | None = None
    ) -> dict[int, dict[str, Any]]:
        """Run the model on prompt and answer; return what it predicts of the answer's tokens, by position."""
        first, lens = len(ids) - tokens, self.lens
        whole = lens.model.can_generate()
        kept = whole and "logits_to_keep" in signature(lens.model.forward).parameters
        options: dict[str, Any] = {"logits_to_keep": tokens + 1} if kept else {}
        output = lens.run([self._item(ids)], rows, whole=whole, **options)
        logits = output.get("logits")
        if logits is None:
            return {}
        logits = logits[0, -tokens - 1 : -1].float()
        chosen = torch.tensor(ids[first:], device=logits.device)[:, None]
        # Logarithms first: none is too small for a product.
        probabilities = logits.log_softmax(-1).gather(1, chosen)[:, 0].double().exp()
        ranks = 1 + (logits > logits.gather(1, chosen)).sum(1)
        likely = zip(probabilities.tolist(), ranks.tolist(), strict=True)
        return {
            at: {"probability": probability, "rank": rank}
            for at, (probability, rank) in enumerate(likely, first)
        }

    def _item(self, ids: Sequence[int]) -> Item:
        return self.lens.read([list(ids)])[0]

    def _given(self, chat: Chat) -> list[tuple[int, ...]]:
        """Return the tokens of a given answer, tokenised by itself; after a prompt also with a space before it."""
        if chat.answer is None:
            return []
        own = tuple(self.lens.tokenizer.encode(chat.answer, add_special_tokens=False))
        return [own] if chat.messages else answer_ids(self.lens, chat.answer) or [own]

    def _answer(self, part: int) -> Sequence[int]:
        """Return the tokens of an answer: of those that are given the likelier ones, or what the model generates."""
        settings, prompt = self.settings, self.parts[part]
        given = self._given(self.chats[part])
        if not given:
            return generated(
                self.lens,
                prompt.ids,
                settings.max_new_tokens,
                settings.sampling,
                settings.seed,
                self._told,
            )

        def likelihood(ids: Sequence[int]) -> float:
            likely = self._pass([*prompt.ids, *ids], len(ids)).values()
            return float(prod(one["probability"] for one in likely))

        return max(given, key=likelihood) if given[1:] else given[0]

    def _told(self, ids: list[int]) -> None:
        self.tell(" ".join(self.lens.tokenizer.decode(ids).split())[-_TAIL:], len(ids))

    def _lengths(self, number: int, prompt: int, answer: Sequence[int] | None) -> tuple[int, int]:
        """Return the most tokens of a prompt and its answer, which must have positions, and of the answer."""
        limit = position_limit(self.lens.model.config)
        new = self.settings.max_new_tokens if answer is None else len(answer)
        if limit is not None and prompt + new > limit:
            raise InputError(
                f"conversation {number}: the prompt has {prompt:,} tokens and the answer up to {new:,}, the model has "
                f"{limit:,} positions. Shorten the prompt or the answer{' (max_new_tokens=...)' * (answer is None)}."
            )
        return prompt + new, new


answer = study_function(AnswerStudy, "answer")


def _by_call(sites: Sequence[Site], settings: AnswerSettings) -> Heads:
    """Return the heads that settings choose, by the number of their attention in call order."""
    heads: dict[int, list[int]] = {}
    for site, head in chosen_heads(tuple(sites), settings.layers, settings.heads, None):
        heads.setdefault(sites.index(site), []).append(head)
    return heads
