"""Proof that capture is faithful on a batch, made while the batch runs: each check has a figure and a limit."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from math import isnan
from typing import Any, NoReturn

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.errors import JoinedTextsError, UnsupportedModelError
from identilens.linalg import HALF
from identilens.linalg.memory import exact
from identilens.models.affine import channels_last
from identilens.models.capture import Lengths
from identilens.models.explaining import Exact
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, Handler
from identilens.models.layout import Site, Sites
from identilens.models.outputs import deviation, relative
from identilens.models.padding import is_per_token
from identilens.models.sequences import sides
from identilens.models.threads import Inputs, first_input, hooked

NOISE = {torch.float64: 1e-5, torch.float32: 5e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
"""Largest relative deviation due to rounding, by the model's precision; families compute the softmax in float32."""

_ENTRIES = 2**22
"""Largest number of a call's attention weights up to which all its rows are checked."""
_DRAWN = 2**20
"""Number of attention weights in the rows that are checked of a larger call."""
_LEAST_ROWS = 8

_OTHER_MODEL = (
    "Choose a model of a tested family (docs/capture.md); no approximate numbers are given."
)
ONE_TEXT = "Give one text, picture or recording at a time (a batch of one)."
_CALLS = "attention calls are those found"
_CUT = "padding is cut away"
_OWN = "captured attention is the model's own"
_LONE_NOISE = 10
"""Multiple of `NOISE` by which a text may differ alone, where its matrices have other shapes and round otherwise."""


@dataclass(frozen=True)
class Check:
    """One check; its figure is the largest deviation found, in the units named in the remark."""

    name: str
    figure: float
    limit: float
    remark: str

    @property
    def passed(self) -> bool:
        """Whether the figure is within the limit; False for NaN."""
        return self.figure <= self.limit


@dataclass(eq=False)
class Proof:
    """Checks the attention calls of one batch while they are made, and the model's output afterwards.

    Args:
        model: Name for messages.
        sites: The expected calls.
        items: The texts of the batch.
        noise: Largest relative deviation allowed; see `NOISE`.
        strict: Raise at the first check that fails; otherwise continue as far as possible.

    Attributes:
        checks: The largest figure of each check so far, by name.
        finite: Whether all numbers are finite. If not, nothing is proven, and the code that uses them raises.
        lone: Place in the batch of the text that also runs alone: the shortest, which has most padding.
    """

    model: str
    sites: Sites
    items: Sequence[Item]
    noise: float
    strict: bool = True
    checks: dict[str, Check] = field(default_factory=dict)
    finite: bool = True

    def __post_init__(self) -> None:
        self.lengths = Lengths(self.items)
        self.lone = min(range(len(self.items)), key=lambda text: self.items[text].length)
        self._rows: dict[int, tuple[list[int], Tensor]] = {}
        self._pending: tuple[AttentionCall, Tensor] | None = None
        self._calls, self._who = 0, ""

    def answering(self, handler: Handler) -> Handler:
        """Return a handler that checks each call before it passes it on."""

        def answer(call: AttentionCall) -> Tensor:
            self._calls += 1
            self._check(call)
            output = handler(call)
            self._pending = call, output if call.gate is None else output * call.gate
            return output

        return answer

    def watching(self) -> AbstractContextManager[None]:
        """Check the inputs and outputs of the output projections inside the context."""
        return hooked({site.projection for site in self.sites}, after=self._projected)

    def conclude(self, plain: Any, captured: Any, repeat: Callable[[Handler], Any]) -> None:
        """Compare the model's output under capture with its output without capture.

        The model can amplify rounding (a threshold chooses experts). So a deviation counts only if it also occurs when
        ``repeat`` runs the model's own attention function under capture, which rounds in the same way.
        """
        missing = float(abs(self._calls - len(self.sites)))
        self._note(_CALLS, missing, "calls too many or few", 0.0)
        if not self.finite:
            return
        error = deviation(plain, captured, self.lengths, self.items)
        if not error <= self.noise:
            error = deviation(plain, repeat(AttentionCall.run), self.lengths, self.items)
        self._note(
            "outputs unchanged by capture",
            error,
            "relative, by text; if it is large: does the model draw random numbers, or overflow in half precision?",
        )

    def alone(self, call: AttentionCall) -> Tensor:
        """Answer a call of the text that runs alone: its attention is that which it had in the batch."""
        output = call.run()
        if call.index in self._rows:
            rows, before = self._rows.pop(call.index)
            after = exact(output[0, rows])
            error = relative(after, before) if after.shape == before.shape else 1.0
            self._who, limit = type(call.module).__name__, _LONE_NOISE * self.noise
            self._note("a text in a batch is as it is alone", error, limit=limit, joined=True)
        return output

    def _note(
        self,
        name: str,
        figure: float,
        remark: str | None = None,
        limit: float | None = None,
        joined: bool = False,
    ) -> None:
        limit = self.noise if limit is None else limit
        check = Check(name, figure, limit, remark or f"relative, {self._who}")
        before = self.checks.get(name)
        # Nothing is worse than a figure that is not a number.
        if before is None or isnan(figure) or figure > before.figure:
            self.checks[name] = check
        if not check.passed and (self.strict or joined):
            self._refuse(
                name, f" with {figure:.3g} (limit {limit:.3g}; {check.remark})", joined=joined
            )

    def _refuse(self, name: str, why: str, joined: bool = False) -> NoReturn:
        """Raise for a check that failed; one that fails where texts are ``joined`` may pass for one text."""
        several, remedy = joined and len(self.items) > 1, ONE_TEXT if joined else _OTHER_MODEL
        raise (JoinedTextsError if several else UnsupportedModelError)(
            f"{self.model} cannot be captured faithfully: the check {name!r} failed{why}. {remedy}"
        )

    def _check(self, call: AttentionCall) -> None:
        self._who = type(call.module).__name__
        self._check_layout(call)
        rows = self._checked_rows(call)
        part = call.rows(rows)
        plain, (output, weights) = part.run(), part.attend()
        shape = (len(self.items), call.query.shape[1], len(rows), call.key.shape[2])
        if weights is None or weights.shape != shape or plain.shape != output.shape:
            self._refuse("attention gives its weights", f": those of {self._who} are not {shape}")
        reference = output
        if call.original is not call.eager and call.query.dtype in HALF:
            with Exact(torch.float32):
                reference = part.attend()[0]
        for text in range(len(self.items)):
            kept, columns = self.lengths.of(text, self.sites[call.index].kind, call)
            places = [row for row in rows if row < kept]
            here = slice(len(places))
            outputs = (side[text, here] for side in (plain, output, reference))
            self._check_text(call, text, places, columns, weights[text][:, here], *outputs)

    def _check_layout(self, call: AttentionCall) -> None:
        batch, heads, queries, _ = call.query.shape
        if call.index >= len(self.sites) or heads != self.sites[call.index].heads:
            self._refuse(_CALLS, f": call {call.index}, of {self._who}, does not belong there")
        if batch != len(self.items):
            self._refuse(
                "attention rows are the texts",
                f": {self._who} attends in {batch} windows or tiles that are not mapped to texts",
                joined=True,
            )
        sequence = sides(self.sites[call.index].kind, self.items[0].tokens).query
        texts = all(map(is_per_token, self.items[0].tensors))
        if texts and self.lengths.padded and not self.lengths.counted(sequence, queries):
            self._refuse(
                _CUT, f" with {queries} queries of {self._who} that are no tokens", joined=True
            )

    def _check_text(
        self,
        call: AttentionCall,
        text: int,
        places: list[int],
        columns: int,
        weights: Float[Tensor, "head row key"],
        *outputs: Float[Tensor, "row head d_v"],
    ) -> None:
        plain, output, reference = (exact(part) for part in outputs)
        if not plain.isfinite().all():
            self.finite = False
            # Masks of minus infinity on every key of a query are read as the least number.
            if output.isfinite().all():
                self._refuse(_OWN, f": the output of {self._who} has NaN or infinity")
            return
        if text == self.lone and len(self.items) > 1:
            self._rows[call.index] = places, plain
        mixed = (exact(weights) @ exact(call.repeated(call.value)[text])).transpose(0, 1)
        self._note("weights times values give the attention output", relative(mixed, output))
        self._note(_OWN, relative(reference, plain))
        sums, least = exact(weights).sum(-1), float(weights.min())
        over = float(((sums - 1) if call.has_sink else (sums - 1).abs()).max())
        self._note(
            "rows sum to 1, or to 1 less a sink",
            max(over, -least),
            f"smallest sum {float(sums.min()):.3f}",
        )
        visible = call.rows(places).visible()[text].clone()
        visible[:, columns:] = False
        self._note(
            "hidden keys have no weight",
            float((weights * ~visible).abs().max()),
            "largest weight on padding or a masked key",
            0.0,
        )
        kind = self.sites[call.index].kind
        sequence = sides(kind, self.items[text].tokens).key
        if kind == "cross" or self.lengths.counted(sequence, call.key.shape[2]):
            return
        self._note(
            _CUT,
            float((~call.visible()[text].any(0)).sum()),
            "positions that no query sees; give recordings and images without padding",
            0.0,
        )

    def _checked_rows(self, call: AttentionCall) -> list[int]:
        """Return the rows of a call that are checked: all, or so many drawn ones that a call is checked quickly.

        Among them are the last row of each text, and several of the shortest one.
        """
        batch, heads, queries, _ = call.query.shape
        size = batch * heads * call.key.shape[2]
        few = queries if queries * size <= _ENTRIES else max(_LEAST_ROWS, _DRAWN // size)
        kind = self.sites[call.index].kind
        kept = [self.lengths.of(text, kind, call)[0] for text in range(len(self.items))]
        drawn = {*drawn_places(queries, few, call.index)}
        last = {count - 1 for count in kept}
        return sorted(drawn | last | {*drawn_places(min(kept), _LEAST_ROWS, call.index)})

    def _projected(self, module: nn.Module, inputs: Inputs, output: Any) -> None:
        if self._pending is None or self.sites[self._pending[0].index].projection is not module:
            return
        call, mixed = self._pending
        site, self._pending = self.sites[call.index], None
        joined = mixed.sum(2) if site.added else mixed.flatten(2)
        entered, left = (by_text(side, call, site) for side in (first_input(inputs), output))
        checked = self._checked_rows(call)
        projection, bias = exact(site.output_projection), exact(site.output_bias)
        for text in range(len(self.items)):
            kept = slice(self.lengths.of(text, site.kind, call)[0])
            if not left[text, kept].isfinite().all():
                self.finite = False
                return
            self._note(
                "the module hands on the attention output",
                relative(entered[text, kept], joined[text, kept]),
            )
            rows = [row for row in checked if row < kept.stop]
            summed = torch.einsum("nhv,hvd->nd", exact(mixed[text, rows]), projection) + bias
            error = relative(summed, exact(left[text, rows]))
            self._note("heads add up to the block's output", error)


def by_text(tensor: Tensor, call: AttentionCall, site: Site) -> Float[Tensor, "text query d"]:
    """Return the input or output of an output projection with the axis of texts first; some families put it second."""
    tensor = channels_last(site.projection, tensor)
    if site.positions_first and call.windows == 1:
        return tensor.transpose(0, 1)
    return tensor.reshape(call.query.shape[0], call.query.shape[2], -1)


def drawn_places(size: int, count: int, seed: int) -> list[int]:
    """Return some of a number of places in order: the last, the first of more than two, and others drawn by a seed."""
    ends = [size - 1, 0][: max(1, count - 1)]
    drawn = torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist()
    return sorted(list(dict.fromkeys([*ends, *drawn]))[:count])
