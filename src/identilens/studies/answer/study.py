"""Where the attention of an answer lies: the segments of a conversation, and what of it is certain."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import signature
from itertools import compress, product
from typing import Any

import polars as pl
import torch
from torch import Tensor

from identilens.claims import Claim, ClaimRow, compared, segment
from identilens.errors import InputError, UnsupportedModelError
from identilens.models.chats import (
    REST,
    SINK,
    SO_FAR,
    TEMPLATE,
    Prompt,
    read_chats,
    read_prompt,
)
from identilens.models.explaining import explained
from identilens.models.families import position_limit
from identilens.models.heads import CapturedLayer, Head
from identilens.models.interface import AttentionCall, evaluation_mode
from identilens.models.lens import Lens
from identilens.runs.provenance import Identity
from identilens.runs.study import Output, study_function
from identilens.runs.tables import Row, table_of
from identilens.studies.answer.result import Answers
from identilens.studies.answer.settings import AnswerSettings
from identilens.studies.certify.rows import certified
from identilens.studies.drawn import drawn_rows
from identilens.studies.heads import LensStudy
from identilens.studies.outcomes import of_head
from identilens.studies.settings import tolerances

_TAIL = 60
"""Last characters of an answer that are shown while it is generated."""


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
            ``messages``, and ``answer`` (after a prompt with the space before it) and ``segments`` (by name: words,
            or first character and the one after the last) if wanted; or a list of these.

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
        self.lens = lens
        # A given answer is tokenised by itself.
        self.parts = [
            (
                read_prompt(lens.tokenizer, chat, number),
                lens.tokenizer.encode(chat.answer or "", add_special_tokens=False),
            )
            for number, chat in enumerate(read_chats(chats))
        ]
        limit = position_limit(lens.model.config)
        for number, (prompt, given) in enumerate(self.parts):
            new = len(given) or settings.max_new_tokens
            if limit is not None and len(prompt.ids) + new > limit:
                raise InputError(
                    f"conversation {number}: the prompt has {len(prompt.ids):,} tokens and the answer up to {new:,}, "
                    f"the model has {limit:,} positions. Shorten the prompt, or the answer (max_new_tokens=...)."
                )
        self._sites = lens.sites(lens.read([self.parts[0][0].ids])[0])
        if not lens.model.can_generate() or any(one.kind != "decoder" for one in self._sites):
            raise UnsupportedModelError(
                f"{type(lens.model).__name__} does not answer: it has no head that predicts tokens, or reads them on "
                "both sides. Choose a causal language model."
            )
        self._tolerances = tolerances(settings.tolerance, "head", lens.dtype)

    def identity(self) -> Identity:
        """Return the model and the conversations."""
        return Identity(self.lens.facts, [f"{prompt} {given}" for prompt, given in self.parts])

    def sizes(self) -> Sequence[int]:
        """Return the tokens to generate and the layers to measure for each conversation."""
        new = self.settings.max_new_tokens
        return [len(self._sites) + (0 if given else new) for _, given in self.parts]

    def run(self, part: int) -> Output:
        """Return the attention of one answer."""
        prompt, given = self.parts[part]
        answer = given or self._generated(prompt.ids)
        ids, first = [*prompt.ids, *answer], len(prompt.ids)
        own = [*prompt.segments, *[SO_FAR] * len(answer)]
        claims, schema = segment_claims(own), Answers.schema
        frames = [pl.DataFrame(schema=pl.Schema(schema["table"]))]

        def measure(call: AttentionCall) -> Tensor:
            """Measure the rows of the answer's tokens: row t − 1, whose output predicts token t, is that of token t."""
            rows = call.rows(range(first - 1, len(ids) - 1))
            layer = CapturedLayer.of(rows, self._sites[call.index], *rows.attend())
            heads = list(layer.heads)
            row = ClaimRow(heads[0], first - 1, [*own, SINK], part)
            costs: Any = {one: one.counting(row) for one in claims}
            frames.append(_values(heads, costs))
            frames.append(pl.DataFrame(self._ends(part, heads, len(answer), costs)))
            self.tell(f"attention {call.index}", self.sizes()[part] - len(self._sites) + call.index)
            return call.run()

        probabilities, ranks = self._likely(ids, len(answer), measure)
        table = pl.concat(frames, how="diagonal_relaxed").with_columns(text=pl.lit(part))
        unknown = [None] * first
        # The sink is a segment where some head has one.
        some = (pl.col("functional") != SINK) | (pl.col("value") > 0).any().over("functional")
        positions = {
            "text": part,
            "position": range(len(ids)),
            "token": self.lens.reader.names(ids),
            "segment": own,
            "answer": [*unknown, *range(len(answer))],
            "probability": [*unknown, *probabilities],
            "rank": [*unknown, *ranks],
        }
        needed = self._without(part, prompt, answer) if self.settings.needed else []
        tables = {
            "table": table.select(*schema["table"]).cast(pl.Schema(schema["table"])).filter(some),
            "positions": pl.DataFrame(positions, schema=schema["positions"]),
            "needed": table_of(schema["needed"], needed),
        }
        return Output(tables)

    def _ends(
        self, part: int, heads: Sequence[Head], tokens: int, costs: Mapping[Claim, Tensor]
    ) -> Iterator[Row]:
        """Yield the drawn rows of a layer again for each tolerance, with the proven ends of each functional."""
        place = part, heads[0].layer, heads[0].kind
        count = len(heads) * tokens
        for row in drawn_rows(self.settings.seed, *place, count, self.settings.bounded):
            number, token = divmod(row, tokens)
            head = heads[number]
            weights, T, visible = head.distributions(head.at(token))
            kept = of_head(weights[token], T, None if visible is None else visible[token])
            at = {"layer": head.layer, "head": head.head, "token": token}
            for tolerance in self._tolerances:
                allowed = kept.allowed(tolerance)
                for one, _ in certified(kept, kept.solver(allowed), costs, allowed):
                    yield {**at, "tolerance": tolerance.name, **one}

    def _without(self, part: int, prompt: Prompt, answer: Sequence[int]) -> Iterator[Row]:
        """Yield the probability of each token of the answer without each segment that can be taken out."""
        for name in dict.fromkeys(prompt.segments):
            # The answer is what follows the last token, which stays.
            kept = [own != name for own in prompt.segments[:-1]] + [True]
            if name == TEMPLATE or all(kept):
                continue
            self.tell(f"without {name}", self.sizes()[part])
            likely, _ = self._likely([*compress(prompt.ids, kept), *answer], len(answer))
            for token, probability in enumerate(likely):
                yield {"text": part, "segment": name, "token": token, "without": probability}

    def _likely(
        self, ids: Sequence[int], tokens: int, rows: Callable[[AttentionCall], Tensor] | None = None
    ) -> tuple[list[float], list[int]]:
        """Return the probability and rank of the last tokens, in a run whose attention may be measured."""
        lens = self.lens
        kept = "logits_to_keep" in signature(lens.model.forward).parameters
        options: dict[str, Any] = {"logits_to_keep": tokens + 1} if kept else {}
        run = lens.run(lens.read([list(ids)]), rows, whole=True, **options)
        logits = run.logits[0, -tokens - 1 : -1].float()
        chosen = torch.tensor(ids[-tokens:], device=logits.device)[:, None]
        # Logarithms first: none is too small for a product.
        probabilities = logits.log_softmax(-1).gather(1, chosen)[:, 0].double().exp()
        ranks = 1 + (logits > logits.gather(1, chosen)).sum(1)
        return probabilities.tolist(), ranks.tolist()

    def _generated(self, ids: Sequence[int]) -> Sequence[int]:
        """Return the answer by the model's own ``generate`` and cache, a stop token included."""
        lens, prompt = self.lens, torch.tensor([list(ids)], device=self.lens.device)

        def told(sequence: Tensor, _: Any) -> Tensor:
            """Pass on the answer so far; nothing stops it."""
            new = sequence[0, len(ids) :].tolist()
            self.tell(" ".join(lens.tokenizer.decode(new).split())[-_TAIL:], len(new))
            return torch.zeros(1, dtype=torch.bool, device=sequence.device)

        generate: Any = lens.model.generate
        with torch.no_grad(), evaluation_mode(lens.model), explained(type(lens.model).__name__):
            output = generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=self.settings.max_new_tokens,
                do_sample=False,
                **dict.fromkeys(("temperature", "top_p", "top_k")),
                num_beams=1,
                use_cache=True,
                pad_token_id=0,
                return_dict_in_generate=False,
                stopping_criteria=[told],
            )
        return output[0, len(ids) :].tolist()


answer = study_function(AnswerStudy, "answer")


def segment_claims(segments: Sequence[str]) -> list[Claim]:
    """Return claims on the attention to each segment and to the sink, and on that to a named one less another's.

    The sink is one more key than there are tokens.
    """
    keys = [*segments, SINK]
    claims = {
        name: segment(name, [at for at, own in enumerate(keys) if own == name])
        for name in dict.fromkeys(keys)
    }
    others = [one for name, one in claims.items() if name != SINK]
    named = [one for one in others if one.words not in (TEMPLATE, REST, SO_FAR)]
    return [*claims.values(), *compared(named, others)]


def _values(heads: Sequence[Head], costs: Mapping[Claim, Tensor]) -> pl.DataFrame:
    """Return the value of each functional in each row of some heads; the last key is what a sink takes."""
    weights = torch.stack([head.attention for head in heads])
    rest = (1 - weights.sum(-1, keepdim=True)).clamp_min(0.0) * heads[0].sink
    values = torch.cat([weights, rest], -1) @ torch.stack([*costs.values()]).mT
    named = [one.words for one in costs]
    places = product([one.head for one in heads], range(values.shape[1]), named)
    frame = pl.DataFrame([*places], schema=["head", "token", "functional"], orient="row")
    return frame.with_columns(layer=heads[0].layer, value=pl.Series(values.flatten().numpy()))
