"""What must stay the same when weights change, and how nearly: the outcome and the tolerances of a certificate."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from itertools import compress, groupby
from math import expm1, sqrt
from typing import Any

import polars as pl
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import FLOAT32_EPS, ProjectedValues, SimplexSpace
from identilens.linalg.memory import blocks
from identilens.linalg.simplex import joint_space, row_space
from identilens.measures.attention.checks import checked_weights
from identilens.measures.attention.row_programs import RowPrograms, stacked
from identilens.models.chats import SO_FAR, TEMPLATE
from identilens.models.continuations import followed
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.interface import Handler
from identilens.models.layout import Site, find_site
from identilens.models.lens import Lens
from identilens.models.outcome import Answer, Left
from identilens.models.substitution import Rows
from identilens.runs.tables import Columns, decimals
from identilens.studies.heads import named_places, shaped
from identilens.studies.settings import ROUNDING, UNITS, Answered, Outcome, Tolerance

_NORMED = (
    "The model normalises what its heads mix before it projects it. The output of a head is here what it mixes, before "
    "the norm: weights that keep it exactly change nothing that the model computes. Others that change only its length "
    "may change nothing either, and are not counted. Lengths of outputs, and shares of them, are before the norm."
)


WITHIN = 0.1
"""A weight or rollout value a is determined if every alternative keeps it within this share: 0.9 a to 1.1 a.

If one determined weight is 1.25 times another, their order is the same in every alternative.
"""

INFLUENTIAL = {"prediction": 0.1, "states": 0.3}
"""Share of the largest effect from which a head counts as influential, by outcome.

Nats grow with the square of a small change of the output, the relative change of states with the change itself.
"""

ONLY_FEW = (
    "That is usual where rows see no more keys than a head's values have dimensions, and says little of the model: "
    "take texts whose rows see more"
)
"""What is said where no other weights have exactly the same outcome."""

Weights = Float[Tensor, " key"]
"""The weights of a row."""

Mask = Bool[Tensor, " key"]
"""Some of a row's keys."""


def exactness(tolerance: str, outcome: str = "head") -> str:
    """Return how nearly the same an outcome stays, in words."""
    if tolerance == "0":
        return "exactly"
    of = "the row's effect" if outcome in UNITS else "its length"
    if tolerance in ROUNDING:
        return f"up to a rounding of {of} to {tolerance}"
    words = tolerance.replace("%", f" % of {of}").replace("nats", " nats")
    return f"up to {words}".replace("change", " of relative change")


def normed_heads(model: Mapping[str, Any]) -> str | None:
    """Return what the output of a head is, in a sentence, if the facts about a model say that a norm follows."""
    return _NORMED if model.get("normed_heads") else None


def scope(provenance: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the rows that alone are looked at, and what the output of a head is, as `normed_heads` says it."""
    asked = provenance["settings"].get("queries") or ()
    return {
        "queries": ", ".join(map(str, asked)) or None,
        "normed": normed_heads(provenance["model"]),
    }


@dataclass(frozen=True)
class KeptOutcome:
    """What must stay the same when one row of a head changes.

    Attributes:
        values: T of the row's keys in units of the outcome: its mixture is what the head adds to it.
        row: The weights, which sum to one; of the outcome ``layer`` those of all heads, one after another.
        space: What may change.
        of_head: Which of these weights are the head's.
        scale: Length of a change that is the whole output; 1 for states and prediction.
        effect: The outcome's change without the head's row, for states and prediction.
        answer: The model's answer, for states and prediction.
        measured: Returns the change of the answer, put into the model, when the head has another row.
    """

    values: ProjectedValues
    row: Weights
    space: SimplexSpace
    of_head: Mask
    scale: float = 1.0
    effect: float | None = None
    answer: Answer | None = None
    measured: Callable[[Weights], float | None] = lambda _: None

    def allowed(self, tolerance: Tolerance) -> float:
        """Return the tolerance in units of the outcome: a share of the output, nats, or a relative change."""
        if tolerance.unit or self.effect is None:
            return tolerance.size
        return tolerance.size * self.effect

    @property
    def power(self) -> int:
        """The power of the length of a change of the mixture with which the outcome changes: nats with the square."""
        return 1 + (self.answer is not None and self.answer.outcome == "prediction")

    def length(self, allowed: float) -> float:
        """Return the length of a change of the mixture that changes the outcome by so much, to first order."""
        return self.scale * allowed ** (1 / self.power)

    def change(self, length: Float[Tensor, " *many"]) -> Float[Tensor, " *many"]:
        """Return the change of the outcome for a length: what `length` undoes."""
        return (length / max(self.scale, 1e-300)) ** self.power


def row_programs(rows: Sequence[KeptOutcome], allowed: Sequence[float]) -> RowPrograms:
    """Return the programs over the alternatives of rows that change the outcome of each by at most so much."""
    weights, of_head = (torch.stack([getattr(row, n) for row in rows]) for n in ("row", "of_head"))
    lengths = weights.new_tensor([*map(KeptOutcome.length, rows, allowed)])
    return RowPrograms.of(weights, stacked([row.space for row in rows]), lengths, of_head)


def of_rows(rows: Sequence[tuple[Head, int]]) -> list[KeptOutcome]:
    """Return heads' own outputs at rows as what must stay; a learnt sink is one more key.

    Raises:
        UnsupportedModelError: As `Head.attention`.
    """
    outputs = []
    for head, query in rows:
        weights, T, visible = head.distributions(head.projected_for(query))
        index = head.row_index(query)
        row = weights[index]
        outputs.append((row, T, row.isfinite() if visible is None else visible[index]))
    return of_outputs(outputs)


def of_outputs(rows: Sequence[tuple[Weights, ProjectedValues, Mask]]) -> list[KeptOutcome]:
    """Return outputs as what must stay, given weights, T and the visible keys of each row, all of one size.

    Raises:
        InputError: Weights that are not a distribution over T's rows.
    """
    weights, values, masks = zip(*rows, strict=True)
    visible, kept = torch.stack(masks), []
    weights, every = checked_weights(torch.stack(weights), values[0], visible), masks[0] | True
    for part in blocks(len(rows), 4 * 8 * values[0].compact.numel(), weights.device):
        compact, keys = torch.stack([T.compact for T in values[part]]), visible[part]
        space = row_space(compact, keys, values[0].tolerance_of(keys.sum(1)))
        scales = torch.linalg.vector_norm((weights[part, None] @ compact)[:, 0], dim=1).tolist()
        each = zip(values[part], weights[part], scales, strict=True)
        kept += [
            KeptOutcome(T, row, space.of(number), every, scale)
            for number, (T, row, scale) in enumerate(each)
        ]
    return kept


def seen_keys(head: Head, query: int) -> Mask:
    """Return which keys a query of a head may use."""
    visible = head.visible_to(query)
    return head.row(query).isfinite() if visible is None else visible


def of_layer(
    heads: Sequence[Head], head: int, query: int, rounding: float = FLOAT32_EPS
) -> KeptOutcome:
    """Return the sum of all heads' outputs, which enters the residual stream, as what must stay.

    Rows move freely along directions in which that is a ``rounding``.

    Raises:
        InputError: For heads whose outputs are normalised before they are added.
    """
    changed = heads[head]
    if changed.site.normed:
        raise InputError(
            f"{changed.kind} layer {changed.layer} normalises what its heads mix before it adds them up, so that what "
            "one head adds depends on the others. Choose the outcome head, states or prediction."
        )
    row = torch.cat([each.row(query) for each in heads])
    # In coordinates that heads share; their widths may differ.
    T = torch.stack([each.values.double() @ each.row_projection(query) for each in heads])
    space = joint_space(T, seen_keys(changed, query), rounding * max(T.shape[1:]))
    of_head = torch.arange(len(row), device=row.device) // len(changed.keys) == head
    scale = float(torch.linalg.vector_norm(row @ T.flatten(0, 1)))
    return KeptOutcome(changed.projected_for(query), row, space, of_head, scale)


def of_answer(answer: Answer, head: Head, query: int) -> KeptOutcome:
    """Return the model's answer as what must stay, to first order."""
    sites = answer.lens.sites(answer.item)
    [root], _ = answer.linearised([(find_site(sites, *head.address), head.head)], query)
    values = ProjectedValues.of(head.values.double(), root)
    [kept] = of_outputs([(head.row(query), values, seen_keys(head, query))])
    measured = lambda row: answer.change(query, {head.address: Rows([query], row[None])})  # noqa: E731
    effect = measured(torch.zeros_like(kept.row))
    return replace(kept, scale=1.0, effect=effect, answer=answer, measured=measured)


def kept_outcomes(
    outcome: Outcome,
    rows: Sequence[tuple[Head, int]],
    layer: Sequence[Head],
    answer: Answer | None,
) -> list[KeptOutcome]:
    """Return what must stay the same when each row changes, given all heads of the layer, or the model's answer."""
    if outcome == "layer":
        return [of_layer(layer, head.head, query) for head, query in rows]
    return [of_answer(answer, *row) for row in rows] if answer else of_rows(rows)


def asked_answer(
    lens: Lens, item: Item, settings: Any, names: Mapping[str, Sequence[str]], text: int
) -> Answer:
    """Return the answer of a model on a text that settings ask for, by ``outcome`` and the positions in ``answer``.

    Raises:
        InputError: For a position or token that the text lacks.
    """
    tokens = names.get("decoder") or names.get("encoder") or ()
    usual = ("last",) if settings.outcome == "prediction" else range(len(tokens))
    asked = usual if settings.answer is None else settings.answer
    positions = {position for name in asked for position in named_places(tokens, name, text)}
    return Answer(lens, item, settings.outcome, sorted(positions))


def model_outcome(lens: Lens, item: Item) -> Answered:
    """Return the outcome of a model where none is asked for: a prediction, if it chooses tokens or classes."""
    logits = lens.run([item], task_head=True).get("logits")
    chooses = logits is not None and 1 < logits.ndim < 4 and logits.shape[-1] > 1
    return "prediction" if chooses else "states"


RELATIVE_EFFECT = (pl.col("effect") / pl.col("effect").max()).fill_nan(0.0).alias("relative_effect")
"""The effect of each head as a share of the largest; nothing is influential where nothing has an effect."""


def changed(outcome: Answered, effect: float) -> str:
    """Return in words that an outcome changes by so much; nats also as the probability that can move at most.

    Total variation is at most √(KL / 2) (Pinsker) and √(1 − exp(−KL)) (Bretagnolle and Huber). Both are concave in KL,
    so that they hold for means over positions, too.
    """
    if outcome == "prediction":
        moved = sqrt(max(0.0, min(effect / 2, -expm1(-effect))))
        return f"prediction changes by {effect:.3g} nats (at most {100 * moved:.3g} % of its probability moves)"
    return f"final hidden states change by {100 * effect:.3g} % of their length"


def positions(answer: Answer) -> int:
    """Return over how many positions a change is a sum; the relative change of states is one number."""
    return len(answer.unchanged) if answer.outcome == "prediction" else 1


def mean_change(answer: Answer, after: Tensor, before: Tensor) -> Tensor:
    """Return the change of the outcome: nats, the mean over positions, or relative change."""
    return answer.between(after, before) / positions(answer)


def head_effects(
    answer: Answer,
    heads: Sequence[tuple[Site, int]],
    left: Left = "zero",
    measure: Callable[..., Tensor] = mean_change,
) -> list[Any]:
    """Return the change of the outcome when each head is removed, or what else is measured without it and with it."""
    # Weights that change as they are used (some quantised ones) lead to new sites.
    sites, changes = answer.lens.sites(answer.item), []
    number = lambda head: find_site(sites, head[0].layer, 0, head[0].kind)  # noqa: E731
    for attention, chosen in groupby(heads, number):
        for pair in answer.without(attention, [head for _, head in chosen], left):
            changes += measure(answer, *pair).tolist()
    return changes


def head_estimates(
    answer: Answer, heads: Sequence[tuple[Site, int]], probes: int = 16, seed: int = 0
) -> list[float]:
    """Return an estimate of `head_effects`, to first order, by one backward pass for each probe."""
    sites = answer.lens.sites(answer.item)
    estimates = answer.estimates(probes, seed)
    return [
        float(estimates[find_site(sites, site.layer, head, site.kind)][head]) / positions(answer)
        for site, head in heads
    ]


BATCH = 32  # texts in one run of the model

WITHOUT: Columns = {
    "text": pl.Int64,
    "segment": pl.String,
    "token": pl.Int64,
    "word": pl.String,
    **decimals("probability", "without"),
}
"""Columns of each token of an answer, by number: its probability, and that without a segment of the text before it."""


def log_probabilities(
    lens: Lens, items: Sequence[Item], steps: int = 1, handler: Handler | None = None
) -> Float[Tensor, "text step label"]:
    """Return the log probability of each class for texts of one length; of a language model, of tokens at last steps.

    The last step is that of the token after the text.
    """
    kept = "logits_to_keep" in signature(lens.model.forward).parameters
    options: dict[str, Any] = {"logits_to_keep": steps} if kept else {}
    logits = lens.run(items, handler, task_head=True, **options).logits
    return logits.view(len(items), -1, logits.shape[-1])[:, -steps:].cpu().double().log_softmax(-1)


def log_likelihoods(
    lens: Lens, items: Sequence[Item], answer: Sequence[int]
) -> Float[Tensor, " text"]:
    """Return the log probability of an answer, a class or the tokens that follow, to each text."""
    texts = [followed(lens, item, answer[:-1]) for item in items]
    likely = torch.empty(len(texts), dtype=torch.float64)
    # Texts of one length make a batch without padding: families disagree about its side and its token. Classifiers that
    # want such a token and have none run one text at a time.
    padding = getattr(lens.model.config.get_text_config(), "pad_token_id", None)
    most = 1 if padding is None and not lens.model.can_generate() else BATCH
    length = lambda number: texts[number].length  # noqa: E731
    for _, numbers in groupby(sorted(range(len(texts)), key=length), length):
        for batch in lens.batches(texts, numbers, most):
            each = log_probabilities(lens, [texts[number] for number in batch], len(answer))
            likely[batch] = each[:, range(len(answer)), answer].sum(-1)
    return likely


def without_segments(
    lens: Lens, text: int, ids: Sequence[int], segments: Sequence[str], likely: Sequence[float]
) -> pl.DataFrame:
    """Return the probability of each token of an answer where one segment is taken out.

    The answer is the last tokens of a text, as many as ``likely``: their probabilities where all stays. ``segments``
    are those of all tokens; of an answer that has some itself, the others' probabilities are returned. The template and
    the rest of the answer stay, and the last token before it.
    """
    first, frames = len(ids) - len(likely), []
    words = lens.reader.names(ids[first:])
    tokens = pl.DataFrame({"token": range(len(words)), "word": words, "probability": likely})
    for name in dict.fromkeys(segments):
        kept = [segment != name for segment in segments]
        kept[first - 1] = True
        rest = kept[first:]
        if name in (TEMPLATE, SO_FAR) or all(kept) or not any(rest):
            continue
        left, count = [*compress(ids, kept)], sum(rest)
        [each] = log_probabilities(lens, lens.read([left]), count + 1)
        without = pl.Series(each[range(count), left[-count:]].exp().numpy())
        rows = tokens.filter(rest).with_columns(segment=pl.lit(name), without=without)
        frames.append(rows)
    return shaped(WITHOUT, frames).with_columns(text=pl.lit(text, pl.Int64))


def segment_needs(without: pl.DataFrame) -> pl.DataFrame:
    """Return how likely each answer is, and without each segment of the text, the most needed segment first.

    ``probability`` and ``without`` are products over the answer's tokens, ``change`` the change of the logarithm in
    nats, and ``times`` how many times less likely the answer is; ``at`` is the token that becomes less likely by the
    largest factor, from ``before`` to ``after``.
    """
    before, after, change = map(pl.col, ("probability", "without", "change"))
    each = without.with_columns(
        change=after.log() - before.log(), at="word", before=before, after=after
    )
    needs = each.group_by("text", "segment", maintain_order=True).agg(
        before.product(),
        after.product(),
        change.sum(),
        (-change.sum()).exp().alias("times"),
        pl.col("at", "before", "after").sort_by("change").first(),
    )
    return needs.sort("text", "change", maintain_order=True)
