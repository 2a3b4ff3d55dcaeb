"""A layer of heads made of tensors, as `measure_layer` takes it."""

from dataclasses import dataclass

import torch

from identilens.linalg import ProjectedValues
from identilens.linalg.masked_rows import CausalRows
from identilens.linalg.rows import BLOCK
from identilens.measures.attention.layer import Block, Layer, measure_layer


@dataclass
class TensorLayer(Layer):
    """The heads of one text; their outputs are the weights times the compact values."""

    projected: ProjectedValues
    weights: torch.Tensor
    visible: object = None
    block: int = 10**9

    has_sink = False
    keeps_maps = False
    keeps_means: bool = False

    def __post_init__(self):
        self.heads, self.queries, self.keys = self.weights.shape
        self.projector = self.projected.projector(self.queries, self.visible)
        self.query_types, self.key_types = (
            torch.ones(1, size, 1, dtype=torch.float64) for size in (self.queries, self.keys)
        )
        self.structural = torch.zeros(1, self.keys, dtype=torch.bool)

    def blocks(self):
        # Causal rows come in whole blocks.
        causal = isinstance(self.projector, CausalRows)
        step = -(-self.block // BLOCK) * BLOCK if causal else self.block
        for start in range(0, self.queries, step):
            rows = slice(start, min(start + step, self.queries))
            weights = self.weights[:, rows]
            yield Block(rows, weights, weights.double() @ self.projected.compact)


def measured(projected, weights, visible=None, block=10**9):
    """Return the measures of heads, given their projected values and weights."""
    return measure_layer(TensorLayer(projected, weights, visible, block))
