"""What the explorer computes, each step small enough to be given up between two of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import polars as pl
import torch
from torch import Tensor

from identilens.charts.labels import visible_text
from identilens.charts.packing import HeadSpace, packed_matrix
from identilens.charts.viewer import TokenMap, viewer_data
from identilens.errors import InputError
from identilens.measures.attention.samplers import far_alternatives
from identilens.measures.attention.simplex import total_variation
from identilens.models.chats import typed_chat
from identilens.models.families import position_limit
from identilens.models.heads import CapturedLayer, Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import find_site
from identilens.models.lens import Lens
from identilens.models.outcome import Answer
from identilens.models.sequences import names_at, sides
from identilens.models.substitution import ModelRun, Rows
from identilens.runs.settings import coerce
from identilens.studies import outcomes
from identilens.studies.alternatives.answers import LARGEST, Aim, in_row, keep_answer
from identilens.studies.answer.study import answer
from identilens.studies.audit.maps import RULES
from identilens.studies.certify.result import OUTCOMES
from identilens.studies.certify.rows import certified_rows
from identilens.studies.faithfulness.decisions import decide, token_needs
from identilens.studies.faithfulness.result import decision_line
from identilens.studies.head_views import size_in_words
from identilens.studies.settings import Outcome, tolerances

MOST_TOKENS = 256
"""Tokens of a text; longer ones are cut."""

ANSWER_TOKENS = 16
"""Tokens of an answer that are generated."""

TOP = 8
"""Next tokens whose probabilities are told."""

Columns = dict[str, list[Any]]
Check = Callable[[], None]
"""Raises where the work was given up."""

Tell = Callable[[Mapping[str, Any]], None]
"""Tells the page what has been done."""


@dataclass(frozen=True)
class Measured:
    """A text as a model computes it: its layers, in the order of their calls, and the answer that it gives."""

    lens: Lens
    text: Any
    item: Item
    layers: Sequence[CapturedLayer]

    @cached_property
    def answer(self) -> Answer:
        """The last prediction, or the final hidden states: found when it is first asked for."""
        outcome = outcomes.model_outcome(self.lens, self.item)
        return Answer(self.lens, self.item, outcome, [-1] if outcome == "prediction" else None)

    def head(self, layer: int, head: int, kind: Any) -> Head:
        """Return one head.

        Raises:
            InputError: If there is none.
        """
        sites = tuple(maps.site for maps in self.layers)
        return self.layers[find_site(sites, layer, head, kind)].head(head)

    def beside(self, head: Head, which: str) -> list[Head]:
        """Return a head itself (``head``), all heads of its layer (``layer``), or all of its kind (``model``).

        Raises:
            SettingError: For another word.
        """
        which = coerce("heads", Literal["head", "layer", "model"], which)
        if which == "head":
            return [head]
        layers = [layer for layer in self.layers if layer.site.kind == head.kind]
        if which == "layer":
            layers = [layer for layer in layers if layer.site.layer == head.layer]
        return [head for layer in layers for head in layer.heads]


def most_tokens(lens: Lens) -> int:
    """Return at how many tokens the texts of a model are cut."""
    return min(MOST_TOKENS, position_limit(lens.model.config) or MOST_TOKENS)


def measured(lens: Lens, text: Any, check: Check, tell: Tell) -> Measured:
    """Return a text as the model computes it; each layer's maps are told as they come, for the viewer."""
    most = most_tokens(lens)
    [item] = lens.read([text], most)
    names = next(iter(item.tokens.values()), ())
    tell({"tokens": list(map(visible_text, names)), "most": most})
    sites, layers = lens.sites(item), []

    def keep(call: AttentionCall) -> Tensor:
        check()
        layer = CapturedLayer.of(call, sites[call.index])
        layers.append(layer)
        tell(
            {
                "layer": len(layers),
                "layers": len(sites),
                "viewer": viewer_data([_map(lens, item, head) for head in layer.heads]),
            }
        )
        return call.run()

    lens.run([item], keep)
    return Measured(lens, text, item, layers)


def proven_row(
    text: Measured, head: Head, query: int, outcome: str = "head", tolerance: str = "0"
) -> dict[str, Any]:
    """Return weight, proven interval, share and verdict of the keys that a query sees, and what must stay the same.

    That is the output of the head, of its layer (``layer``), or the model's answer (``answer``), up to a tolerance.
    Beside a head's output up to a tolerance stand the ends for exactly this output.

    Raises:
        InputError: For a query that is not there.
        SettingError: For another outcome, or a tolerance that cannot be read.
    """
    _require_query(head, query)
    head.refuse_sink()
    named = coerce("outcome", Literal["head", "layer", "answer"], outcome)
    answer = text.answer if named == "answer" else None
    stays: Outcome = answer.outcome if answer else named  # pyright: ignore
    [kept] = outcomes.kept_outcomes(stays, [(head, query)], text.beside(head, "layer"), answer)
    [read] = tolerances([tolerance], stays, "float32")
    allowed = [kept.allowed(read), *[0.0] * (stays == "head")]
    # A page shows no radius.
    tables = certified_rows([kept], " " * len(head.keys), [allowed], radii=False)
    row, exact = (pl.DataFrame(tables[end]["table"]).to_dict(as_series=False) for end in (0, -1))
    words = f"{OUTCOMES[stays].removesuffix(',')}, {outcomes.exactness(read.name, stays)}"
    if kept.effect is not None:
        words += f", to first order (without this row, the {outcomes.changed(text.answer.outcome, kept.effect)})"
    return {
        **row,
        "kept": words,
        "outcome": stays,
        "tolerance": read.name,
        "effect": kept.effect,
        "exact_lo": exact["lo"],
        "exact_hi": exact["hi"],
    }


def alternative(text: Measured, head: Head, check: Check) -> dict[str, Any]:
    """Return another attention of a head with the same output, put back into the model, and what that changed."""
    head.refuse_sink()
    weights = far_alternatives(
        head.attention,
        head.projected,
        visible=head.visible,
        generator=torch.Generator().manual_seed(0),
    )
    check()
    run = text.lens.substitute({head.address: weights}, text.item)
    return {
        "layer": packed_matrix(weights),
        "distance": float(total_variation(head.attention, weights).mean()),
        "output_error": head.output_error(weights),
        **changed(text, run),
    }


def same_answer(
    text: Measured, head: Head, query: int, aim: str, tolerance: str, which: str
) -> dict[str, Any]:
    """Return another row of heads with which the model gives the same answer, and what it says then.

    ``which`` are the heads, see `Measured.beside`.

    Raises:
        InputError: For a query that is not there, or heads that do not see the same keys.
        SettingError: For another aim, or a tolerance that cannot be read.
    """
    _require_query(head, query)
    heads = text.beside(head, which)
    for each in heads:
        each.refuse_sink()
    answer, raw = text.answer, torch.stack([each.attention[query] for each in heads])
    [read] = tolerances([tolerance], answer.outcome, "float32")
    kept = keep_answer(answer, heads, query, read, [], coerce("aim", Aim, aim))
    run = text.lens.substitute(in_row(heads, query, kept.weights), text.item)
    maps, errors = [], []
    for each, row in zip(heads, kept.weights, strict=True):
        choices = {"kind": each.kind, "layer": each.layer, "head": each.head}
        maps.append({"choices": choices, "layer": _layer_with(each, query, row)})
        errors.append(_row_error(each, query, row))
    names = "mass_before", "mass_after", "keys_before", "keys_after"
    return {
        "maps": maps,
        "distance": float(total_variation(raw, kept.weights).mean()),
        "tolerance": read.name,
        **{name: sum(kept.columns[name]) / len(heads) for name in names},
        "largest_share": LARGEST,
        "measured": kept.columns["measured"],
        "output_error": max(errors),
        **changed(text, run),
    }


def moved_row(text: Measured, head: Head, query: int, change: Sequence[float]) -> dict[str, Any]:
    """Return what a change of a row by hand does, cut to what leaves the head's output and the row's sum as they are.

    Raises:
        InputError: For a change of other keys.
    """
    _require_query(head, query)
    before = head.attention[query]
    asked = torch.tensor(change, dtype=torch.float64)
    if asked.shape != before.shape or not asked.isfinite().all():
        raise InputError(f"expected a change of {len(before)} weights; got {len(asked)}.")
    free = head.projected_for(query).simplex_space(head.visible_to(query)).free
    allowed = free @ (free.T @ asked)
    falling = allowed < 0
    step = min([1.0, *(-before[falling] / allowed[falling]).tolist()])
    return _with_row(text, head, query, (before + step * allowed).clamp_min(0.0))


def broken_row(text: Measured, head: Head, query: int, key: int, weight: float) -> dict[str, Any]:
    """Return what the model computes where one weight of a row is another, and the other weights share the rest.

    They keep their proportions, so that the head's output changes as a rule.

    Raises:
        InputError: For a query that is not there, a key that it does not see, what is no weight, or a row of one key.
    """
    _require_query(head, query)
    row, visible = head.attention[query], head.visible_to(query)
    if not (0 <= key < len(row) and (visible is None or visible[key]) and 0 <= weight <= 1):
        raise InputError(
            f"query {query} sees no key {key} whose weight could be {weight:g}; weights are between 0 and 1."
        )
    moved = row.index_fill(0, torch.tensor([key]), 0.0)
    if not moved.any():
        raise InputError(
            f"query {query} attends to key {key} alone: no other key takes its weight."
        )
    moved *= (row.sum() - weight) / moved.sum()
    moved[key] = weight
    return _with_row(text, head, query, moved.clamp_min(0.0))


def _with_row(text: Measured, head: Head, query: int, row: Tensor) -> dict[str, Any]:
    """Return what another row of weights changes of its head's output, and of what the model computes."""
    run = text.lens.substitute({head.address: Rows([query], row[None])}, text.item)
    return {
        **changed(text, run),
        "output_error": _row_error(head, query, row),
        "weights": row.tolist(),
        "layer": _layer_with(head, query, row),
    }


def _layer_with(head: Head, query: int, row: Tensor) -> Any:
    """Return a head's weights with another row, for the viewer."""
    return packed_matrix(head.attention.index_copy(0, torch.tensor([query]), row[None]))


def _row_error(head: Head, query: int, row: Tensor) -> float:
    """Return the relative change of a head's output at one row."""
    before, compact = head.attention[query], head.projected_for(query).compact
    return _relative(before @ compact, row @ compact)


def without_head(text: Measured, head: Head) -> dict[str, Any]:
    """Return what the model computes where a head adds nothing."""
    run = text.lens.substitute({head.address: torch.zeros_like(head.attention)}, text.item)
    return {**changed(text, run), "output_error": 1.0}


def strongest(text: Measured) -> dict[str, Any]:
    """Return the head without which the answer changes most, to first order, and the row to look at.

    That is the one, of the first, the last and the last but one, without which the answer changes most.
    """
    pairs = zip(text.layers, text.answer.estimates(), strict=True)
    layer, effects = max(pairs, key=lambda pair: pair[1].max())
    head = layer.head(int(effects.argmax()))
    last = len(head.queries) - 1
    nothing = torch.zeros(1, len(head.keys))
    row = max(
        {0, max(0, last - 1), last},
        key=lambda query: text.answer.change(query, in_row([head], query, nothing)),
    )
    return {"layer": head.layer, "head": head.head, "kind": head.kind, "row": row}


def needed(text: Measured, answer: str) -> dict[str, Any]:
    """Return the text marked by what the model's answer, or a named one, needs of it, as part of a page.

    Raises:
        InputError: For a model that neither classifies texts nor predicts the next token, or a text without two tokens
            that can be removed.
        SettingError: For an answer that the model does not know.
    """
    decision = decide(text.lens, text.item, answer)
    if len(decision.removable) < 2:
        raise InputError("expected a text with at least two tokens that can be taken out.")
    line = decision_line(pl.DataFrame(token_needs(decision) | {"text": 0}))
    return {"html": replace(line, title=answer or "The model's answer").html(), "words": line.title}


def changed(text: Measured, run: ModelRun) -> dict[str, Any]:
    """Return how another run of the text differs: answer, each hidden state, and probabilities of next tokens."""
    plain = text.lens.substitute({}, text.item)
    states = [
        {"sequence": sequence, "layer": layer, "change": _relative(before, after)}
        for sequence, held in plain.hidden_states.items()
        for layer, (before, after) in enumerate(zip(held, run.hidden_states[sequence], strict=True))
    ]
    answer = text.answer
    change = float(answer.between(answer.after(run), answer.unchanged))
    return {
        "states": states,
        "answer": f"the model's {outcomes.changed(answer.outcome, change)}",
        "change": change,
        "same_top": answer.same_top(run),
        **_predictions(text, plain, run),
    }


def answered(text: Measured, check: Check, tell: Tell) -> dict[str, Any]:
    """Return prompt and answer, coloured by what the answer needs and is certain to attend to.

    The text is a prompt or a chat, see `typed_chat`.

    Raises:
        InputError: For a chat that cannot be used.
        UnsupportedModelError: For a model that does not answer.
    """
    result = answer(
        text.lens,
        typed_chat(text.text),
        max_new_tokens=ANSWER_TOKENS,
        progress=given_up(check, tell),
    )
    return {
        "html": "".join(line.html() for line in result.token_lines()),
        "words": result.summary().text,
    }


def given_up(check: Check, tell: Tell) -> Callable[[int, int, str], None]:
    """Return what a study tells its progress to, and is stopped by."""

    def progress(done: int, total: int, note: str) -> None:
        check()
        tell({"progress": done / max(total, 1), "note": note})

    return progress


def _predictions(text: Measured, plain: ModelRun, run: ModelRun) -> dict[str, Any]:
    if plain.logits is None or run.logits is None or text.answer.outcome != "prediction":
        return {}
    before, after = (
        logits.cpu().double().reshape(-1, logits.shape[-1])[-1].softmax(-1)
        for logits in (plain.logits, run.logits)
    )
    tokens = list(
        dict.fromkeys([*before.topk(min(TOP, len(before))).indices.tolist(), int(after.argmax())])
    )
    classes: Any = text.lens.model.config.id2label
    names = text.lens.reader.names(tokens)
    if len(before) == len(classes):
        names = [str(classes[token]) for token in tokens]
    rows = [
        {"token": visible_text(name), "before": float(before[token]), "after": float(after[token])}
        for name, token in zip(names, tokens, strict=True)
    ]
    return {
        "next": rows,
        "largest": float((after - before).abs().max()),
        "logits_change": _relative(plain.logits, run.logits),
    }


def _relative(before: Tensor, after: Tensor) -> float:
    before = before.cpu().double()
    return float((after.cpu() - before).norm() / before.norm().clamp_min(1e-300))


def _map(lens: Lens, item: Item, head: Head) -> TokenMap:
    side, config = sides(head.kind, item.tokens), lens.model.config
    raw, T = head.family_weights.float(), head.projected
    queries, keys = (
        names_at(item.tokens, name, size, config)
        for name, size in zip(side, raw.shape, strict=True)
    )
    rank = int(T.rank)
    layers = {"raw": raw} | (
        {} if head.visible is None else {"effective": T.effective(raw.double(), head.visible)}
    )
    note = size_in_words(len(raw), raw.shape[1], head.values.shape[1], rank, raw.shape[1] - rank)
    return TokenMap(
        {"kind": head.kind, "layer": head.layer, "head": head.head},
        layers,
        queries,
        keys,
        note,
        {"null": ("raw", "effective")},
        0,
        HeadSpace(T.compact, rank, head.visible, RULES),
    )


def _require_query(head: Head, query: int) -> None:
    if not 0 <= query < len(head.queries):
        raise InputError(f"the text has queries 0 to {len(head.queries) - 1}; got {query}.")
