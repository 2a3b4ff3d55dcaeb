"""The attention of layers on texts of one length: values, mask, and blocks of weights and outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.linalg import HALF, OutputFactor, ProjectedValues
from identilens.linalg.checks import check_finite
from identilens.linalg.memory import LARGE, held_by, joined, near, wide
from identilens.linalg.rows import RowProjector
from identilens.linalg.softmax import attention_logits, follow_logits, visible_softmax
from identilens.measures.attention.layer import Block, Layer
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site


@dataclass
class LayerBatch(Layer):
    """The attention of some layers on some texts of one length, without padding, as `measure_layer` takes it.

    Layers have one shape and one mask; all texts of a layer come before those of the next. Values are projected when
    they are asked for. Weights come block by block from the family's eager attention; those of half precision are
    computed again from queries and keys where they follow them.

    Attributes:
        texts: Their numbers.
        calls: The texts' attention call in each layer.
        factor: That of the output projections, layer by layer and text by text, of each group's heads.
        types: Token types of each text's queries, and of its keys.
        keeps_maps: Whether raw and effective attention are kept; for one text.
        keeps_means: Whether means over blocks of the weights are; for one text.
        follows: Heads whose weights are those of their queries and keys in all blocks that were taken: no sink.
    """

    texts: Sequence[int]
    sites: Sequence[Site]
    calls: Sequence[AttentionCall]
    factor: OutputFactor
    types: tuple[Sequence[Float[Tensor, "query type"]], Sequence[Float[Tensor, "key type"]]]
    keeps_maps: bool
    keeps_means: bool = False

    def __post_init__(self) -> None:
        call = self.calls[0]
        self.has_sink = call.has_sink
        _, self.heads, self.n_query, self.d_k = call.query.shape
        _, self._groups, self.n_key, self.d_v = call.value.shape
        self.query_types, self.key_types = (
            torch.stack([*side]).to(self.factor.lower).repeat(len(self.calls), 1, 1)
            for side in self.types
        )
        # The last type contains every token without a type of its own.
        self.structural = self.key_types[..., :-1].any(-1)
        self._lower = self.factor.lower.flatten(1, 2)
        self.follows = torch.full_like(self._lower[..., 0, 0], not self.has_sink, dtype=torch.bool)

    @cached_property
    def projected(self) -> ProjectedValues:  # pyright: ignore[reportIncompatibleVariableOverride]
        """T of all heads."""
        values = wide(joined([call.value for call in self.calls]))
        projected = ProjectedValues(values[:, :, None], self.factor.d_model, self.factor)
        check_finite(attention_values=projected.compact)
        return projected

    @cached_property
    def projector(self) -> RowProjector:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Their projector."""
        return self.projected.projector(self.n_query, near(self.calls[0].visible()[0]))

    def parts(self) -> Iterator["LayerBatch"]:
        """Yield one text's heads by groups, so that factors fit; together if maps are kept, with sinks and biases."""
        call, factor, groups = self.calls[0], self.factor, self._groups
        step = max(1, LARGE // 2 * groups // held_by(call.value, self.heads))
        if (
            step >= groups
            or len(self.key_types) > 1
            or self.keeps_maps
            or self.has_sink
            or call.bias() is not None
        ):
            yield self
            return
        queries = call.query.split(step * self.heads // groups, 1)
        shared = (
            part.split(step, 1) for part in (call.key, call.value, factor.lower, factor.inverse)
        )
        for query, key, value, lower, inverse in zip(queries, *shared, strict=True):
            calls = [replace(call, query=query, key=key, value=value)]
            yield replace(self, calls=calls, factor=replace(factor, lower=lower, inverse=inverse))

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
                self.follows &= follow_logits(
                    weights, exact, logits, query, keys, call.scaling, visible
                )
                weights = torch.where(self.follows[..., None, None], exact, wide(weights))
            yield Block(
                rows,
                weights.flatten(0, 1),
                (wide(outputs.transpose(1, 2)) @ self._lower).flatten(0, 1),
            )

    def rows(self, layer: int, queries: Sequence[int]) -> tuple[CapturedLayer, ProjectedValues]:
        """Return some rows of a layer on the one text, and the values that their weights mix."""
        call = self.calls[layer].rows(queries)
        compact = self.projected.compact.flatten(1, 2)
        T = ProjectedValues(compact[layer], self.factor.d_model)
        return CapturedLayer.of(call, self.sites[layer]), T
