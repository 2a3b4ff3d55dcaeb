"""A layer's attention on texts of one length: values, mask, and blocks of weights and outputs."""

from collections.abc import Iterator, Sequence
from math import isfinite

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import NumericalError
from identilens.linalg import HALF, OutputFactor, ProjectedValues, Visible
from identilens.linalg.softmax import attention_logits, follow_logits, visible_softmax
from identilens.measures.attention.layer import Block, Layer
from identilens.models.heads import CapturedLayer
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site


class LayerBatch(Layer):
    """The attention of one layer on some texts of one length, without padding, as `measure_layer` takes it.

    Values are read when it is made. Weights come block by block from the family's eager attention; those of half
    precision are computed again from queries and keys where they follow them.

    Args:
        texts: Their numbers, for messages.
        call: The texts' attention call.
        factor: That of the output projections.
        types: Token types of each text's queries, and of its keys.
        value_bias: Subtracted from the values, one row a value head, where it is given.
        keeps_maps: Whether raw and effective attention are kept; for one text.
        keeps_means: Whether means over blocks of the weights are; for one text.

    Attributes:
        output: The model's attention output, complete once all blocks have been taken.
        unproven: Heads whose weights are known in half precision only, or that have a sink.
    """

    def __init__(
        self,
        texts: Sequence[int],
        site: Site,
        call: AttentionCall,
        factor: OutputFactor,
        types: tuple[Sequence[Float[Tensor, "query type"]], Sequence[Float[Tensor, "key type"]]],
        *,
        value_bias: Float[Tensor, "group d_v"] | None,
        keeps_maps: bool,
        keeps_means: bool = False,
    ) -> None:
        self.texts, self.site, self.call, self.factor, self.heads = (
            texts, site, call, factor, site.heads,
        )  # fmt: skip
        self.keeps_maps, self.keeps_means = keeps_maps, keeps_means
        self.has_sink = call.has_sink
        self.n_query, self.d_k = call.query.shape[-2:]
        groups, self.n_key, self.d_v = call.value.shape[1:]
        bias = None if value_bias is None else value_bias.double()[:, None]
        self._bias = None if bias is None else bias.repeat_interleave(self.heads // groups, 0)
        self.query_types, self.key_types = (torch.stack([*side]).to(factor.lower) for side in types)
        # The last type contains every token without a type of its own.
        self.structural = torch.stack([*types[1]])[..., :-1].any(-1)
        values = call.value.double() if bias is None else call.value.double() - bias
        output = factor.grouped(len(texts), groups)
        self.projected = ProjectedValues(values[:, :, None], factor.d_model, None, output)
        self.require_finite(self.projected.compact.flatten(0, 2), "values")
        self.projector = self.projected.projector(self.n_query, self._visible())
        self.output = call.query.new_empty(len(texts), self.n_query, site.heads, self.d_v)
        self.unproven = set(range(site.heads)) if call.has_sink else set()

    def blocks(self) -> Iterator[Block]:
        """Yield the rows of all heads, and write the attention output."""
        for rows in self.projector.steps(self.n_query):
            output, weights = self.call.attend(rows)
            self.output[:, rows] = output
            if weights.dtype in HALF:
                weights = self._recomputed(rows, weights)
            outputs = output.transpose(1, 2).double()
            if self._bias is not None:
                outputs = outputs - weights.double().sum(-1, keepdim=True) * self._bias
            outputs = outputs @ self.factor.lower
            yield Block(rows, weights.flatten(0, 1), outputs.flatten(0, 1))

    def rows(self, queries: Sequence[int]) -> tuple[CapturedLayer, ProjectedValues]:
        """Return some rows of the one text, and the values that their weights mix: with their bias.

        A sink, whose value is zero, makes the difference.
        """
        call = self.call.rows(queries)
        mixed = self.projector.compact
        if self._bias is not None:
            mixed = mixed + self._bias @ self.factor.lower
        layer = CapturedLayer.of(call, self.site, *call.attend())
        return layer, ProjectedValues(mixed.cpu(), self.factor.d_model)

    def require_finite(self, sizes: Float[Tensor, "head *rest"], what: str) -> None:
        """Raise for numbers that are not finite.

        Raises:
            NumericalError: Naming the first text and the layer.
        """
        # A sum is finite only if every term is, and costs one pass.
        if isfinite(sizes.sum().item()):
            return
        by_text = sizes.unflatten(0, (len(self.texts), -1)).flatten(1).sum(1)
        bad = [
            text
            for text, total in zip(self.texts, by_text.tolist(), strict=True)
            if not isfinite(total)
        ]
        raise NumericalError(
            f"text {bad[0] if bad else self.texts[0]}, {self.site.kind} layer {self.site.layer}: attention {what} has "
            "NaN or infinite entries. Look for an overflow in half precision (load with --dtype float32) or a broken "
            "checkpoint."
        )

    def _visible(self) -> Visible:
        if self.call.mask is None:
            return self.call.unmasked_pattern()
        visible = self.call.visible()
        return (
            None if visible is None or bool(visible.all()) else visible[0].expand(self.n_query, -1)
        )

    def _recomputed(
        self, rows: slice, weights: Float[Tensor, "text head row key"]
    ) -> Float[Tensor, "text head row key"]:
        """Return the weights of a model in half precision, computed again from Q and K where that is possible."""
        call = self.call.rows(range(self.n_query)[rows])
        keys = call.key.repeat_interleave(self.heads // call.key.shape[1], 1)
        visible = call.visible()
        visible = None if visible is None else visible[:, None]
        logits = attention_logits(
            call.query, keys, call.scaling, call.bias, call.arguments.get("softcap")
        )
        exact = visible_softmax(logits, visible)
        follows = follow_logits(weights, exact, logits, call.query, keys, call.scaling, visible)
        if self.has_sink:
            follows = torch.zeros_like(follows)
        self.unproven |= set((~follows).any(0).nonzero().flatten().tolist())
        return torch.where(follows[..., None, None], exact, weights.double())
