"""Where the attention of an answer lies: the segments of a conversation, and what of it is certain."""

from collections.abc import Sequence
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.claims import segments_by_name
from identilens.errors import InputError, UnsupportedModelError
from identilens.models.chats import (
    REST,
    SINK,
    SO_FAR,
    TEMPLATE,
    answer_segments,
    read_chats,
    read_prompt,
)
from identilens.models.explaining import explained
from identilens.models.families import position_limit
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall, evaluation_mode
from identilens.models.lens import Lens
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, study_function
from identilens.studies.answer.result import Answers
from identilens.studies.answer.settings import AnswerSettings
from identilens.studies.certify.rows import layer_functionals
from identilens.studies.heads import LensStudy
from identilens.studies.outcomes import log_probabilities, without_segments

_UNNAMED = TEMPLATE, REST, SO_FAR, SINK
"""Segments that are not compared with others."""


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
            ``messages``, and ``answer`` (after a prompt with the space before it) and ``segments`` (by name: words of
            the prompt or the answer, or first character and the one after the last) if wanted; or a list of these.

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
        >>> found = idl.answer(lens, chat, max_new_tokens=2, bounded=16)
        >>> found.segments().select("segment", "tolerance", "value", "lo", "hi").filter(segment="first words")
        shape: (2, 5)
        ┌─────────────┬───────────┬──────────┬──────────┬──────────┐
        │ segment     ┆ tolerance ┆ value    ┆ lo       ┆ hi       │
        │ ---         ┆ ---       ┆ ---      ┆ ---      ┆ ---      │
        │ str         ┆ str       ┆ f64      ┆ f64      ┆ f64      │
        ╞═════════════╪═══════════╪══════════╪══════════╪══════════╡
        │ first words ┆ bfloat16  ┆ 0.180488 ┆ 0.080842 ┆ 0.366698 │
        │ first words ┆ 0         ┆ 0.180488 ┆ 0.112824 ┆ 0.290712 │
        └─────────────┴───────────┴──────────┴──────────┴──────────┘
    """

    name = "answer"
    unit = "steps"
    settings_type = AnswerSettings
    result_type = Answers

    def __init__(self, lens: Lens, chats: Any, settings: AnswerSettings) -> None:
        super().__init__(settings)
        self.lens = lens
        self.parts = []
        for number, chat in enumerate(read_chats(chats)):
            prompt = read_prompt(lens.tokenizer, chat, number)
            # A given answer is tokenised by itself.
            answer = lens.tokenizer.encode(chat.answer or "", add_special_tokens=False)
            tokens = len(prompt.ids) + (len(answer) or settings.max_new_tokens)
            limit = position_limit(lens.model.config) or tokens
            if tokens > limit:
                raise InputError(
                    f"conversation {number}: prompt and answer have up to {tokens} tokens, the model has {limit} "
                    "positions. Shorten the prompt, or the answer (max_new_tokens=...)."
                )
            if answer:
                answer_segments(lens.tokenizer, prompt, answer, number)
            self.parts.append((prompt, answer))
        self._sites = lens.sites(lens.read([self.parts[0][0].ids])[0])
        if not lens.model.can_generate() or any(site.kind != "decoder" for site in self._sites):
            raise UnsupportedModelError(
                f"{lens.name} does not answer: it has no head that predicts tokens, or reads them on "
                "both sides. Choose a causal language model."
            )

    def identity(self) -> Identity:
        """Return the model and the conversations."""
        return Identity(self.lens.facts, [*map(str, self.parts)])

    def sizes(self) -> Sequence[int]:
        """Return the tokens to generate for each conversation, and one step for what is measured of them."""
        return [self.settings.max_new_tokens + 1] * len(self.parts)

    def run(self, part: int) -> Output:
        """Return the attention of one answer."""
        lens, settings, (prompt, answer) = self.lens, self.settings, self.parts[part]
        answer = answer or self._generated(prompt.ids)
        ids, first, count = [*prompt.ids, *answer], len(prompt.ids), len(answer)
        segments = [*prompt.segments, *answer_segments(lens.tokenizer, prompt, answer, part)]
        names = lens.reader.names(ids)
        # Row t − 1, whose output predicts token t, is that of token t.
        queries = range(first - 1, len(ids) - 1)
        rows = [{"text": part, "query": query, "query_token": names[query]} for query in queries]
        frames, tolerances = [], settings.read_tolerances(lens.dtype)

        def measure(call: AttentionCall) -> Tensor:
            layer = CapturedLayer.of(call.rows(queries), self._sites[call.index])
            keys = [*segments, *[SINK] * layer.sink]
            claims = segments_by_name(keys, _UNNAMED)
            frames.append(
                layer_functionals(
                    layer, rows, keys, claims, tolerances, settings.seed, settings.bounded
                )
            )
            self.tell("attention", settings.max_new_tokens)
            return call.run()

        [each] = log_probabilities(lens, lens.read([ids]), count + 1, measure)
        likely = each[range(count), answer].exp().tolist()
        removed = without_segments(lens, part, ids, segments, likely)
        unknown = [None] * first
        positions = {
            "text": [part] * len(ids),
            "position": range(len(ids)),
            "token": names,
            "segment": segments,
            "answer": [*unknown, *range(count)],
            "probability": [*unknown, *likely],
        }
        shown = pl.DataFrame(positions)
        return Output({"table": pl.concat(frames), "positions": shown, "needed": removed})

    def _generated(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the answer by the model's own ``generate`` and cache, a stop token included."""
        lens, prompt = self.lens, torch.tensor([ids], device=self.lens.device)

        def told(sequence: Tensor, _: Any) -> Tensor:
            """Pass on the answer so far; nothing stops it."""
            new = sequence[0, len(ids) :]
            # Its last characters, as many as a line of progress has room for.
            self.tell(" ".join(lens.tokenizer.decode(new).split())[-60:], len(new))
            return sequence[:, 0] < 0

        generate: Any = lens.model.generate
        with torch.no_grad(), evaluation_mode(lens.model), explained(lens.model):
            output = generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=self.settings.max_new_tokens,
                do_sample=False,
                **dict.fromkeys(("temperature", "top_p", "top_k")),
                num_beams=1,
                pad_token_id=0,
                return_dict_in_generate=False,
                stopping_criteria=[told],
            )
        return output[0, len(ids) :].tolist()


answer = study_function(AnswerStudy, "answer")
