"""The trial of one model type: captured with proof, refused with a reason, or a defect."""

import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from families.inputs import candidates
from families.tiny import is_part, tiny_models
from identilens.errors import IdentilensError
from identilens.models.capture import Lengths
from identilens.models.inputs import InputReader, Item, collate
from identilens.models.interface import SUM_ERROR
from identilens.models.lens import Lens
from identilens.models.outputs import deviation
from identilens.models.proof import NOISE

_NO_MEMORY = "can't allocate memory"
Layers = list[tuple[str, Tensor]]
"""One text's attention layers in call order: kind, and weights [head, query, key]."""
AGREEMENT = 1e-3
"""Largest difference between captured weights and those that the family itself gives, in float32.

A text in a batch and alone is rounded otherwise, and sharp attention enlarges that.
"""
_SOFTMAX = ("softmax", "scaled_dot_product_attention", "log_softmax")


Outcome = Literal["served", "refused", "no attention", "part", "not built", "crash", "wrong"]


@dataclass(frozen=True)
class Trial:
    """The result of trying a model type.

    Attributes:
        family: Model type.
        outcome: ``served``: captured with proof; ``refused``: an error says what to do; ``no attention``: refused, and
            the model has no softmax; ``part``: of other models, and tried within them; ``not built``: no small model
            of it could be built and run; ``crash``, ``wrong``: defects.
        model: Class tried.
        way: How attention is captured.
        inputs: Kinds of input served, with commas between.
        layers: Attention layers captured.
        difference: Largest difference from the weights that the family's own ``output_attentions`` gives; empty
            where it gives none.
        reason: Why it is not served, and what to do instead; for served types, which parts are not.
    """

    family: str
    outcome: Outcome
    model: str = ""
    way: str = ""
    inputs: str = ""
    layers: int | None = None
    difference: float | None = None
    reason: str = ""


def trial(family: str) -> Trial:
    """Return the trial of a type, made on the first small model that can be built and run."""
    reasons: list[str] = []
    try:
        if is_part(family):
            return Trial(
                family, "part", reason="It is tried within the models that it is a part of."
            )
        for model in tiny_models(family):
            if runnable := _runnable(model, reasons):
                return _tried(family, model, runnable)
    except Exception as error:
        reasons.insert(0, f"{type(error).__name__}: {error}")
    return Trial(
        family,
        "not built",
        reason=_short(reasons[0] if reasons else "it takes none of the inputs made here"),
    )


def _runnable(model: PreTrainedModel, reasons: list[str]) -> dict[str, Any]:
    """Return the inputs, by kind, on which the model itself runs."""
    inputs: dict[str, Any] = {}
    for kind, given in candidates(model):
        if kind in inputs:
            continue
        batch = _batch(model, given)
        try:
            _run(model, batch)
            _run(model, _first(batch))
            inputs[kind] = given
        except Exception as error:
            reasons.append(f"{kind}: {type(error).__name__}: {error}")
    return inputs


@torch.no_grad()
def _run(model: PreTrainedModel, batch: dict[str, Tensor], **options: Any) -> Any:
    """Return a model's output, as a lens runs it: without a cache where the model has that option."""
    try:
        return model(**batch, **options, use_cache=False)
    except Exception as error:
        try:
            return model(**batch, **options)
        except Exception:
            raise error from None


def _eager(model: PreTrainedModel) -> PreTrainedModel:
    """Return a copy of a model built with eager attention: some models choose their attention when they are built."""
    copy = type(model)._from_config(deepcopy(model.config), attn_implementation="eager")
    copy.load_state_dict(model.state_dict())
    return copy.eval()


def _first(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the first row of a batch, on which layers are searched; the whole batch if rows are not texts."""
    count = len(next(iter(batch.values())))
    alike = all(len(tensor) == count for tensor in batch.values())
    return {name: tensor[:1] for name, tensor in batch.items()} if alike else batch


def _batch(model: PreTrainedModel, given: Any) -> dict[str, Tensor]:
    """Return inputs as a lens hands them to the model, or as they are where it refuses them."""
    try:
        return collate(InputReader(model.config).read(given), "cpu")
    except IdentilensError:
        if isinstance(given, dict):
            return given
        items = [
            Item({"input_ids": torch.tensor(ids)}, {"encoder": ("",) * len(ids)}) for ids in given
        ]
        batch = collate(items, "cpu")
        return batch | {f"decoder_{name}": tensor for name, tensor in batch.items()}


def _tried(family: str, model: PreTrainedModel, runnable: dict[str, Any]) -> Trial:
    parts = [(kind, _captured(family, model, kind, given)) for kind, given in runnable.items()]
    served = [(kind, part) for kind, part in parts if part.outcome == "served"]
    others = [(kind, part) for kind, part in parts if part.outcome != "served"]
    bad = next((part for _, part in others if part.outcome in ("wrong", "crash")), None)
    if bad is not None or not served:
        return bad or others[0][1]
    differences = [part.difference for _, part in served if part.difference is not None]
    return replace(
        served[-1][1], inputs=", ".join(kind for kind, _ in served), difference=max(differences, default=None),
        reason="; ".join(filter(None, [served[-1][1].reason, *(f"{kind}: {part.reason}" for kind, part in others)])),
    )  # fmt: skip


def _captured(family: str, model: PreTrainedModel, kind: str, given: Any) -> Trial:
    softmax = _Softmax()
    with softmax:
        _run(model, _batch(model, given))
    told = Trial(family, "served", type(model).__name__)
    try:
        lens = Lens(model)
        items = lens.read(given)
        layers = _weights(lens, given)
        if kind == "text":
            _padding_is_cut(lens, given, layers)
        difference = _difference(lens, items, layers)
    except Exception as error:
        return replace(told, **_failed(error, kind, softmax.seen))
    told = replace(
        told,
        way="followed" if any(site.route for site in lens.sites(items)) else "interface",
        inputs=kind,
        layers=len(layers[0]),
        difference=difference,
    )
    if difference is not None and not difference <= AGREEMENT:
        return replace(
            told,
            outcome="wrong",
            reason=f"{kind}: weights differ from output_attentions by {difference:.1e}",
        )
    more = softmax.maps - len(layers[0])
    remarks = (
        [f"layers without attention: {', '.join(lens.other_layers)}"] if lens.other_layers else []
    )
    if lens.mixing_layers:
        remarks.append(
            f"layers that mix positions by more than attention: {', '.join(lens.mixing_layers)}"
        )
    remarks += [f"{more} more softmaxes over maps are not in these layers"] if more > 0 else []
    return replace(told, reason="; ".join(remarks))


def _failed(error: Exception, kind: str, softmax: bool) -> dict[str, Any]:
    """Return outcome and reason of an error: ours say what to do, and any other is a defect."""
    if _NO_MEMORY in str(error):
        return {"outcome": "not built", "reason": _short(f"{kind}: {error}")}
    if isinstance(error, IdentilensError):
        return {"outcome": "refused" if softmax else "no attention", "reason": _short(str(error))}
    return {"outcome": "crash", "reason": _short(f"{kind}: {type(error).__name__}: {error}")}


def _weights(lens: Lens, given: Any) -> list[Layers]:
    """Return each text's weights, after the proof; texts of one length and kind run in one padded batch."""
    return [
        [
            (layer.site.kind, torch.stack([head.family_weights for head in layer.heads]))
            for layer in text.layers
        ]
        for text in lens.capture(given, weights=True)
    ]


def _difference(lens: Lens, items: Sequence[Item], layers: Sequence[Layers]) -> float | None:
    """Return the largest difference from the weights that the model gives for each text alone.

    None if it gives none, or gives them with eager attention only and computes something else without it.
    """
    try:
        eager, batches = _eager(lens.model), [collate([item], "cpu") for item in items]
        outputs = [_run(eager, batch, output_attentions=True) for batch in batches]
        own = [_run(lens.model, batch) for batch in batches]
    except Exception:
        return None
    pairs = zip(own, outputs, items, strict=True)
    if any(
        not deviation(one, other, Lengths([item]), [item]) <= NOISE[torch.float32]
        for one, other, item in pairs
    ):
        return None
    worst = None
    for output, captured in zip(outputs, layers, strict=True):
        for kind in dict.fromkeys(kind for kind, _ in captured):
            ours_of_kind = [weights for other, weights in captured if other == kind]
            reference = _attentions(output, kind)
            if reference is None or len(reference) != len(ours_of_kind):
                continue
            for theirs, ours in zip(reference, ours_of_kind, strict=True):
                if len(theirs) == 1 and theirs.shape[1:] == ours.shape:
                    worst = max(worst or 0.0, _off(theirs[0], ours))
    return worst


def _off(theirs: Tensor, ours: Tensor) -> float:
    """Return the largest difference.

    Our rows contain a sink that some families apply later; theirs are scaled by it. Some families give each head the
    mean over heads.
    """
    if len(theirs) > 1 and bool((theirs == theirs[:1]).all()):
        ours = ours.mean(0, keepdim=True).expand_as(ours)
    ratio = ours.sum(-1, keepdim=True) / theirs.sum(-1, keepdim=True).clamp_min(1e-12)
    sunk = theirs * ratio if bool((ratio < 1 + SUM_ERROR).all()) else theirs
    return min(float((weights - ours).abs().max()) for weights in (theirs, sunk))


def _attentions(output: Any, kind: str) -> Sequence[Tensor] | None:
    names = {"cross": ("cross_attentions",)}.get(kind, (f"{kind}_attentions", "attentions"))
    layers = next((output[name] for name in names if output.get(name)), ())
    # Some families give the logits instead, or nothing for some layers.
    usable = all(isinstance(layer, Tensor) and float(layer.min()) >= 0 for layer in layers)
    return layers if layers and usable else None


def _padding_is_cut(lens: Lens, given: Sequence[Sequence[int]], layers: Sequence[Layers]) -> None:
    """Compare batches that are padded on the left and on the right with the texts themselves.

    Raises:
        ValueError: If they differ.
    """
    start = int(getattr(lens.model.config, "decoder_start_token_id", None) or 0)
    for side in ("left", "right"):
        batch = _padded(given, side)
        if lens.model.config.is_encoder_decoder:
            targets = _padded([[start, *ids[:-1]] for ids in given], side)
            batch |= {f"decoder_{name}": tensor for name, tensor in targets.items()}
        for padded, alone in zip(_weights(lens, batch), layers, strict=True):
            for (_, weights), (_, expected) in zip(padded, alone, strict=True):
                if not torch.allclose(weights, expected, atol=AGREEMENT):
                    raise ValueError(f"a batch padded on the {side} gives other weights")


def _padded(texts: Sequence[Sequence[int]], side: str) -> dict[str, Tensor]:
    size = max(map(len, texts))
    blanks = [[0] * (size - len(ids)) for ids in texts]
    pairs = [(ids, [1] * len(ids), blank) for ids, blank in zip(texts, blanks, strict=True)]
    rows = [
        ([*blank, *ids], blank + ones) if side == "left" else ([*ids, *blank], ones + blank)
        for ids, ones, blank in pairs
    ]
    return {
        "input_ids": torch.tensor([row for row, _ in rows]),
        "attention_mask": torch.tensor([row for _, row in rows]),
    }


def _short(reason: str, length: int = 330) -> str:
    # A module is named without the place of its file, which is this machine's.
    line = re.sub(r" from '[^']*'(?=>)", "", " ".join(reason.split("; tested families")[0].split()))
    return line if len(line) <= length else f"{line[: length - 1]}…"


class _Softmax(TorchFunctionMode):
    """Counts what may be attention: softmaxes over tensors with axes for text, head, query and key."""

    seen, maps = False, 0

    def __torch_function__(
        self, func: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        self.seen |= name in _SOFTMAX
        self.maps += name in _SOFTMAX and isinstance(args[0], Tensor) and args[0].ndim == 4
        return func(*args, **(kwargs or {}))
