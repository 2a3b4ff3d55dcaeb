"""What comes out of a model, its prediction or its final hidden states, and how it depends on one row of attention."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError
from identilens.linalg import HALF
from identilens.linalg.decompositions import eigh
from identilens.linalg.memory import blocks, wide
from identilens.models.capture import states_of
from identilens.models.explaining import derivable, explained
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall, Handler
from identilens.models.later import LaterLayers
from identilens.models.lens import Lens
from identilens.models.linearise import Suffixes, computed, tangents_at_once
from identilens.models.offloading import is_offloaded
from identilens.models.outputs import relative
from identilens.models.proof import NOISE
from identilens.models.substitution import ModelRun, Rows, Substitution

Left = Literal["zero", "mean"]
"""What is left of a head that is removed: nothing, or at each row the mean of its output over the rows of the text."""

Entries = Float[Tensor, "position entry"]
"""The logits, or the final hidden states, at the positions that count."""

Changed = Float[Tensor, "*runs position entry"]
"""The same of a run with a change, or of several."""

_AT_ONCE, _LOGITS = 8, 2**24
"""Copies of a text in one run of the model at most, and how many logits they may have together."""

Heads = Sequence[tuple[int, int]]
"""Heads: the number of their attention in call order, and their own."""

RowsOfHeads = Mapping[Any, Rows]
"""Other weights of heads, by their addresses, in one and the same row."""

LARGEST = 8 * 2**30
"""Bytes of a derivative that is held."""


@dataclass(frozen=True)
class Answer:
    """The outcome of a model on one text at some positions, and its changes.

    Attributes:
        outcome: ``prediction``: the distribution of the next token, or of the classes of a classifier, which has one
            for the whole text. ``states``: the final hidden states.
        positions: Positions that count, in their order; all by default.
        following: Tokens that follow at these positions: an answer.
    """

    lens: Lens
    item: Item
    outcome: Literal["states", "prediction"]
    positions: Sequence[int] | None = None
    following: Sequence[int] = ()

    @cached_property
    def unchanged(self) -> Entries:
        """The logits, or the final hidden states, of the model as it is."""
        return self._entries_of(self.text.output)

    def change(self, query: int, replacements: RowsOfHeads) -> float:
        """Return the change of the outcome when heads have other weights in one row: what the model gives.

        For the prediction KL(p ‖ p') in nats, summed over the positions; for states ‖h' − h‖ / ‖h‖.
        """
        return float(self.between(*self.replaced(query, replacements)))

    @torch.no_grad()
    def replaced(self, query: int, replacements: RowsOfHeads) -> tuple[Entries, Entries]:
        """Return the outcome when heads have other weights in one row, and as it is.

        Nothing before the row is computed again where no position reads a later one.
        """
        start, earlier, before = self._from(self.text, query)
        after = self._since(self.text, self._put(replacements, query - start), start)
        return torch.cat([earlier, after]), torch.cat([earlier, before])

    def between(self, after: Changed, before: Entries) -> Float[Tensor, "*runs"]:
        """Return the change of the outcome after a change, in one run or several, and before it, as `change` does."""
        if self.outcome == "states":
            before = wide(before)
            moved = torch.linalg.vector_norm(wide(after) - before, dim=(-2, -1))
            return moved / before.norm().clamp_min(1e-300)
        changes = []
        for part in blocks(len(before), 64 * (after.numel() // len(before)), before.device):
            q, p = (wide(entries[..., part, :]).log_softmax(-1) for entries in (after, before))
            changes.append((p.exp() * (p - q)).sum((-2, -1)))
        return torch.stack(changes).sum(0).clamp_min(0.0)

    def likelihoods(self, entries: Changed) -> Float[Tensor, "*runs following"]:
        """Return the logarithm of the probability of each token that follows, by logits, in nats."""
        places = range(len(self.following))
        each = wide(entries[..., : len(places), :]).log_softmax(-1)
        return each[..., places, list(self.following)].cpu()

    def after(self, run: ModelRun) -> Entries:
        """Return the outcome in a run that was made."""
        *_, last = run.hidden_states.values()
        return self._entries(last[-1] if self.outcome == "states" else run.logits)

    def same_top(self, run: ModelRun) -> bool:
        """Return whether each largest entry is the same in a run that was made."""
        return self.after(run).argmax(-1).equal(self.unchanged.argmax(-1))

    def without(
        self, number: int, heads: Sequence[int], left: Left = "zero"
    ) -> Iterator[tuple[Changed, Entries]]:
        """Yield the outcome when each of some heads writes nothing, or at each row its mean, and as it is.

        ``number`` is that of their attention in call order; heads come in their order, some at a time.
        """
        later = self._layers
        # The model's own attention on both sides: in half precision, eager attention alone changes the outcome.
        before = self._entries_of(later.output)
        most = max(1, min(_AT_ONCE, _LOGITS // max(1, self.item.length * before.shape[1])))

        def remove(_call: AttentionCall, output: Tensor) -> None:
            for text, copy in enumerate(batch):
                removed = output[text, :, heads[copy]]
                removed[:] = removed.mean(0) if left == "mean" else 0.0

        for batch in self.lens.batches([self.item] * len(heads), range(len(heads)), most):
            run = later.changed(number, remove, len(batch))
            yield torch.stack([self._entries_of(run, text) for text in range(len(batch))]), before

    @cached_property
    def _layers(self) -> LaterLayers:
        return LaterLayers(self.lens, self.item, self._wanted)

    def estimates(self, probes: int = 16, seed: int = 0) -> list[Float[Tensor, " head"]]:
        """Return what `without` gives where nothing is left, to first order, for all heads of each attention.

        ‖z J L‖² of all heads' outputs z at once: the mean of (z J L ε)² over random signs ε, each by one backward pass.
        Its relative error is about √(2 / probes), alike for heads that move the outcome in the same direction.
        """
        lens, model = self.lens, self.lens.model
        exact = torch.promote_types(lens.dtype, torch.float32)
        gates = [
            torch.ones(site.heads, dtype=exact, device=lens.device, requires_grad=True)
            for site in lens.sites(self.item)
        ]

        def gated(call: AttentionCall) -> Tensor:
            return call.run() * gates[call.index][:, None]

        # Offloaded parameters are moved as they are.
        within = explained if is_offloaded(model) else derivable
        with torch.enable_grad():
            run = computed(lens, self.item, gated, model, within, **self._wanted)
            entries = self._entries_of(run)
        generator, output, slopes = torch.Generator().manual_seed(seed), entries.detach(), []
        size, length = output.numel(), wide(output).norm().clamp_min(1e-300)
        places = torch.arange(8, dtype=torch.uint8, device=output.device)
        for _ in range(probes):
            # L ε of the entries, for random signs ε, eight in a number: L Lᵀ is the metric of the outcome.
            drawn = torch.randint(256, (size // 8 + 1, 1), dtype=torch.uint8, generator=generator)
            signs = (drawn.to(output.device) >> places & 1).flatten()[:size].view_as(output)
            probe = 2 * signs.to(output) - 1
            if self.outcome == "states":
                probe /= length
            else:
                p = output.softmax(-1)
                probe *= (p / 2).sqrt()
                probe -= p * probe.sum(-1, keepdim=True)
            slopes.append(
                torch.autograd.grad(
                    entries, gates, probe, retain_graph=True, materialize_grads=True
                )
            )
        each = map(torch.stack, zip(*slopes, strict=True))
        power = 1.0 if self.outcome == "prediction" else 0.5
        return [wide(slope).square().mean(0).pow(power).cpu() for slope in each]

    def linearised(
        self, heads: Heads, query: int, replacements: RowsOfHeads | None = None
    ) -> tuple[Float[Tensor, "head d_v r"], Float[Tensor, "head d_v"]]:
        """Return L and g: a small change x of what heads mix at one row changes the outcome by ‖x L‖² + 2 x·g.

        Of the prediction, KL(p ‖ p') is ½ xᵀ J (diag p − p pᵀ) Jᵀ x to second order, with the Jacobian J of the logits.
        Of states it is the square of the relative change, ‖xᵀ J‖² / ‖h‖². With ``replacements`` of this row heads have
        other weights, so that the outcome has changed already; without, g is 0.
        """
        moves, after, before = self.derivative(heads, query, replacements or {})
        moves = torch.cat([moves, (after - before)[None]])
        # The products of all moves in the metric of the outcome, near where it is after.
        metric = wide(moves.new_zeros(len(moves), len(moves)))
        length = wide(self._entries_of(self._derived.output)).norm().square().clamp_min(1e-300)
        for some in blocks(len(after), 8 * len(moves) * after.shape[1], after.device):
            part = wide(moves[:, some])
            scaled = part / length
            if self.outcome == "prediction":
                p = wide(after[some]).softmax(-1)
                part = part - (part * p).sum(-1, keepdim=True)
                scaled = part * p / 2
            metric += part.flatten(1) @ scaled.flatten(1).mT
        sizes, directions = eigh(metric[:-1, :-1])
        root, slope = directions * sizes.clamp_min(0).sqrt(), metric[:-1, -1]
        shape = len(heads), -1
        return root.unflatten(0, shape), slope.unflatten(0, shape)

    def derivative(
        self, heads: Heads, query: int, replacements: RowsOfHeads
    ) -> tuple[Float[Tensor, "number position entry"], Tensor, Tensor]:
        """Return how the outcome moves with each number that heads mix at one row, and the outcome after and before.

        Before: with the heads' own weights; after: with their ``replacements`` in this row. Positions are those that
        count and can move: see `Suffixes`. One forward derivative a number; of a few classes one backward pass a class.

        Raises:
            InputError: For heads of different sizes, or a derivative that does not fit into memory.
        """
        sites, text = self.lens.sites(self.item), self._derived
        widths = {len(sites[number].zeros) for number, _ in heads}
        if len(widths) > 1:
            raise InputError(
                "the heads of these layers differ in size; look at one layer at a time."
            )
        start, _, before = self._from(text, query)
        row = query - start
        mixed = self._put(replacements, row)

        def outcome(change: Float[Tensor, "head d_v"]) -> Tensor:
            def add(call: AttentionCall) -> Tensor:
                output = mixed(call)
                moved = [index for index, (number, _) in enumerate(heads) if number == call.index]
                if not moved:
                    return output
                numbers = [heads[index][1] for index in moved]
                places = (torch.tensor(axis, device=output.device) for axis in (0, row, numbers))
                return output.index_put((*places,), change[moved], accumulate=True)

            return self._since(text, add, start)

        with torch.no_grad():
            after = self._since(text, mixed, start) if replacements else before
            zero = before.new_zeros(len(heads), *widths)
            if 8 * zero.numel() * before.numel() > LARGEST:
                raise InputError(
                    f"the derivative of the outcome of this text needs more than {LARGEST:,} bytes. "
                    "Name fewer positions with answer= (--answer), or cut the text."
                )
            at_once = tangents_at_once(
                self.lens, self.item, self.item.length - start, before.numel()
            )
            if 0 < before.numel() < zero.numel():
                at_once = 0
            return jacobian(outcome, zero, at_once), after, before

    @cached_property
    def text(self) -> Suffixes:
        """The text as the model computes it."""
        if self.lens.dtype in HALF or is_offloaded(self.lens.model):
            return Suffixes(self.lens, self.item, self._wanted, explained)
        return self._derived

    @cached_property
    def _derived(self) -> Suffixes:
        """The text in single precision at least, of which derivatives are."""
        return Suffixes(self.lens, self.item, self._wanted, derivable)

    @property
    def cast(self) -> float:
        """The change of the outcome that single precision, in which it is derived, makes by itself: see `between`."""
        return float(self.between(self._entries_of(self._derived.output), self.unchanged))

    @torch.no_grad()
    def _from(self, text: Suffixes, query: int) -> tuple[int, Tensor, Entries]:
        """Return from where a text runs for changes in a row, and the outcome before that position and from there."""
        full, start = self._entries_of(text.output), query if text.held else 0
        before = self._since(text, AttentionCall.mixed, start) if start else full
        earlier, later = full.tensor_split([len(full) - len(before)])
        if relative(before, later) > NOISE[before.dtype]:
            return 0, full[:0], full
        return start, earlier, before

    def _put(self, replacements: RowsOfHeads, row: int) -> Substitution:
        """Return what replaces a row of heads where it has another number."""
        rows = {head: Rows([row], rows.weights) for head, rows in replacements.items()}
        return Substitution(self.lens.sites(self.item), rows)

    def _since(self, text: Suffixes, handler: Handler, start: int) -> Entries:
        """Return the outcome from a position on."""
        later, size = self.positions, self.item.length
        if start and later:
            later = [index % size - start for index in later if index % size >= start]
        return replace(self, positions=later)._entries_of(text.run(handler, start))

    @property
    def _wanted(self) -> dict[str, bool]:
        """What the model is asked for beside its logits."""
        return {"output_hidden_states": self.outcome == "states"}

    def _entries_of(self, run: Any, text: int = 0) -> Entries:
        if self.outcome == "states":
            *_, last = states_of(run).values()
            return self._entries(last[-1][text])
        logits = run.get("logits")
        return self._entries(None if logits is None else logits[text])

    def _entries(self, output: Any) -> Entries:
        """Return the entries at the positions that count, from a text's logits or last states."""
        if self.outcome == "prediction":
            if output is None:
                raise InputError(
                    f'{self.lens.name} predicts nothing: it has no logits. Choose outcome="states" (--outcome states), '
                    "or load the model with its task head."
                )
            if output.shape[-1] == 1:
                raise InputError(
                    f"{self.lens.name} has one output: there is nothing to choose from, and no distribution that could "
                    'change. Choose outcome="states" (--outcome states).'
                )
            if output.ndim == 1:
                return output[None]
        entries = output.flatten(0, -2)
        return entries if self.positions is None else entries[list(self.positions)]


def jacobian(
    outcome: Callable[[Tensor], Tensor], point: Float[Tensor, "*input"], at_once: int
) -> Float[Tensor, "tangent position entry"]:
    """Return the derivative of an outcome: forward mode for some inputs at a time; backward, an entry a pass, if 0."""
    if not at_once:
        return torch.func.jacrev(outcome, chunk_size=1)(point).flatten(2).movedim(2, 0)
    derivative = torch.vmap(
        lambda move: torch.func.jvp(outcome, (point,), (move,))[1], chunk_size=at_once
    )
    return derivative(torch.eye(point.numel()).to(point).unflatten(1, point.shape))
