"""Many changes of one attention map, run side by side: each is an element of one batch of the same text."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.linalg.memory import near, wide
from identilens.models.capture import states_of
from identilens.models.heads import Head
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.later import LaterLayers
from identilens.models.layout import find_site, layer_of
from identilens.models.lens import Lens
from identilens.models.substitution import Rows, put_rows, text_losses
from identilens.models.threads import EndedError, Inputs, hooked


class MapRuns:
    """Runs a model on one text with changed rows of one attention map, many changes in one forward pass.

    The model runs on a batch of copies of the text.

    Args:
        lens: The model.
        item: The text.
        head: The head, as captured on this text.
        batch: Largest number of changes in one forward pass.
    """

    def __init__(self, lens: Lens, item: Item, head: Head, batch: int = 64) -> None:
        self._lens, self._item, self._head, self._batch = lens, item, head, batch
        sites = lens.sites(item)
        self._site = find_site(sites, *head.address)
        self._later = LaterLayers(lens, item, {"output_hidden_states": True})
        self._plain = self._outcome([Rows(range(len(head.attention)), head.attention)])

    def effects(self, changes: Sequence[Rows]) -> dict[str, Float[Tensor, " change"]]:
        """Return how much each change moves the model away from its own weights put back.

        ``hidden``: ‖Δ final hidden states‖_F as a share of their norm; ``logits``: the same of the logits; ``loss``:
        the absolute change of the loss. The last two only if the model has them.
        """
        moves: dict[str, list[Tensor]] = {}
        for part in self._parts(changes):
            for name, after in self._outcome(part).items():
                before = wide(self._plain[name])
                moved = (wide(after) - before).view(len(part), -1).norm(dim=-1)
                if name != "loss":
                    moved /= before.norm().clamp_min(1e-300)
                moves.setdefault(name, []).append(moved)
        return {name: torch.cat(parts) for name, parts in moves.items()}

    def layer_outputs(self, changes: Sequence[Rows]) -> Float[Tensor, "change query d_model"]:
        """Return the output of the map's layer at every query under each change; later layers do not run.

        Raises:
            UnsupportedModelError: If the model does not have its layers in a list.
        """
        layer = layer_of(self._lens.body, self._head.site)
        outputs: list[Tensor] = []

        def keep(_module: nn.Module, _inputs: Inputs, output: Any) -> None:
            if self._reached:
                outputs.append(output if isinstance(output, Tensor) else output[0])
                raise EndedError

        with hooked([layer], after=keep):
            for part in self._parts(changes):
                with suppress(EndedError):
                    self._run(part)
        return near(torch.cat(outputs))

    def _parts(self, changes: Sequence[Rows]) -> Iterator[Sequence[Rows]]:
        return (
            changes[start : start + self._batch] for start in range(0, len(changes), self._batch)
        )

    def _outcome(self, changes: Sequence[Rows]) -> dict[str, Float[Tensor, "change *shape"]]:
        """Return final states, logits and losses under each change; the last two if the model has them."""
        output = self._run(changes)
        *_, states = states_of(output).values()
        logits = output.get("logits")
        losses = text_losses(self._lens.model, self._item, logits)
        named = {"hidden": states[-1], "logits": logits, "loss": losses}
        return {name: value for name, value in named.items() if value is not None}

    def _run(self, changes: Sequence[Rows]) -> Any:
        head, self._reached = self._head, False

        def put(call: AttentionCall, output: Tensor) -> None:
            self._reached = True
            for number, rows in enumerate(changes):
                put_rows(output, number, rows, head.site, head.head, call)

        return self._later.changed(self._site, put, len(changes))
