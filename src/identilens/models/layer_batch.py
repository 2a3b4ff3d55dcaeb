"""The attention of layers on texts of one length: values, mask, and blocks of weights and outputs."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import HALF, OutputFactor, ProjectedValues
from identilens.linalg.checks import check_finite
from identilens.linalg.memory import joined, near, wide
from identilens.linalg.softmax import attention_logits, follow_logits, visible_softmax
from identilens.measures.attention.layer import Block, Layer
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site


class LayerBatch(Layer):
    """The attention of some layers on some texts of one length, without padding, as `measure_layer` takes it.

    Layers have one shape and one mask; all texts of a layer come before those of the next. Values are read when it is
    made. Weights come block by block from the family's eager attention; those of half precision are computed again from
    queries and keys where they follow them.

    Args:
        texts: Their numbers.
        calls: The texts' attention call in each layer.
        factor: That of the output projections, layer by layer.
        types: Token types of each text's queries, and of its keys.
        keeps_maps: Whether raw and effective attention are kept; for one text.
        keeps_means: Whether means over blocks of the weights are; for one text.
    """

    def __init__(
        self,
        texts: Sequence[int],
        sites: Sequence[Site],
        calls: Sequence[AttentionCall],
        factor: OutputFactor,
        types: tuple[Sequence[Float[Tensor, "query type"]], Sequence[Float[Tensor, "key type"]]],
        *,
        keeps_maps: bool,
        keeps_means: bool = False,
    ) -> None:
        self.texts, self.sites, self.calls = texts, sites, calls
        self.heads = sites[0].heads
        self.keeps_maps, self.keeps_means = keeps_maps, keeps_means
        call = calls[0]
        self.has_sink = call.has_sink
        self.n_query, self.d_k = call.query.shape[-2:]
        groups, self.n_key, self.d_v = call.value.shape[1:]
        self.query_types, self.key_types = (
            torch.stack([*side]).to(factor.lower).repeat(len(calls), 1, 1) for side in types
        )
        # The last type contains every token without a type of its own.
        self.structural = self.key_types[..., :-1].any(-1)
        grouped = factor.grouped(len(texts), groups)
        self._lower = grouped.lower.flatten(1, 2)
        values = joined([call.value for call in calls])[:, :, None]
        self.projected = ProjectedValues(wide(values), factor.d_model, grouped)
        check_finite(attention_values=self.projected.compact)
        self.projector = self.projected.projector(self.n_query, near(call.visible()[0]))
        self._follows = torch.full_like(self._lower[..., 0, 0], not call.has_sink, dtype=torch.bool)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all heads."""
        for rows in self.projector.steps(self.n_query):
            end = self.projector.end(rows)
            calls = [call.rows(rows, end) for call in self.calls]
            attended = zip(*(call.attend() for call in calls), strict=True)
            outputs, weights = (near(joined(parts)) for parts in attended)
            if weights.dtype in HALF:
                # Computed again from Q and K where that is possible.
                call = calls[0]
                query = joined([call.query for call in calls])
                keys = joined([call.repeated(call.key) for call in calls])
                visible = near(call.visible())[:1, None]
                added: Any = [call.bias() for call in calls]
                bias = (
                    torch.cat([part.expand(len(self.texts), -1, -1, -1) for part in added])
                    if added[0] is not None
                    else None
                )
                logits = attention_logits(
                    query, keys, call.scaling, bias, call.arguments.get("softcap")
                )
                exact = visible_softmax(logits, visible)
                self._follows &= follow_logits(
                    weights, exact, logits, query, keys, call.scaling, visible
                )
                weights = torch.where(self._follows[..., None, None], exact, wide(weights))
            yield Block(
                rows,
                weights.flatten(0, 1),
                (wide(outputs.transpose(1, 2)) @ self._lower).flatten(0, 1),
            )

    def rows(self, layer: int, queries: Sequence[int]) -> tuple[CapturedLayer, ProjectedValues]:
        """Return some rows of a layer on the one text, and the values that their weights mix."""
        call = self.calls[layer].rows(queries)
        compact = self.projector.compact.unflatten(0, (-1, self.heads))
        T = ProjectedValues(compact[layer], self.projected.d_model)
        return CapturedLayer.of(call, self.sites[layer]), T

    def unproven(self, layer: int) -> set[int]:
        """Return heads whose weights are known in half precision only, or that have a sink, once blocks were taken."""
        unproven = ~self._follows.unflatten(0, (len(self.calls), -1))[layer].all(0)
        return set(unproven.nonzero().flatten().tolist())
