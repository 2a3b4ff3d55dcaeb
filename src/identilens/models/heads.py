"""The heads of an attention layer on one text, with the inputs of their outputs."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import InputError, UnsupportedModelError
from identilens.linalg import HALF, ProjectedValues
from identilens.linalg.memory import near, wide
from identilens.linalg.softmax import attention_logits, follow_logits, visible_softmax
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site
from identilens.models.sequences import Kind

Map = Float[Tensor, "row key"]
"""A number of each key in each row."""


@dataclass(frozen=True)
class Captured:
    """What is captured of one head on one text, without padding, or of all heads of a layer.

    Those have an axis of heads, or of groups of heads that share keys and values.

    Attributes:
        queries: Q, after positions are applied.
        keys: K, after positions are applied; the heads of a group share keys and values.
        values: V, with its bias: the vectors that the weights mix.
        head_output: A V, as the model computed it.
        weights: A after softmax, as the model's family computes it; None if it was not requested.
        visible: Which keys each query sees; None if it sees every key.
        bias: Position bias added to the logits, if the family has one; heads may share it.
        softcap: c, if the logits are c tanh(s Q Kᵀ / c); None without a soft cap.
        sink: Whether a learnt sink, a key without value, takes part in the softmax: rows then sum to less than one.
        gate: What the output A V is multiplied with, row by row, before W_O, if the family has a gate or norm there.
        rows: The rows that weights, mask and bias are of; every row of queries and outputs by default.
    """

    site: Site
    queries: Float[Tensor, "*head query d_k"]
    keys: Float[Tensor, "*group key d_k"]
    values: Float[Tensor, "*group key d_v"]
    head_output: Float[Tensor, "*head query d_v"]
    weights: Float[Tensor, "*head row key"] | None
    visible: Bool[Tensor, "row key"] | None
    scaling: float
    bias: Float[Tensor, "*biases row key"] | None
    softcap: float | None
    sink: bool = False
    gate: Float[Tensor, "*head query d_v"] | None = None
    rows: Sequence[int] | None = None


@dataclass(frozen=True, kw_only=True)
class Head(Captured):
    """One attention head on one text, without padding, with what is `Captured` of it.

    Attributes:
        head: Its number in the layer.
        group: Number of query heads that share its keys and values.
    """

    head: int
    group: int

    def on_processor(self) -> "Head":
        """Return the head with its tensors in the processor's memory."""
        held = ((field.name, getattr(self, field.name)) for field in fields(self))
        return replace(
            self, **{name: part.cpu() for name, part in held if isinstance(part, Tensor)}
        )

    @property
    def layer(self) -> int:
        """Number of the layer, from 0 within its kind."""
        return self.site.layer

    @property
    def kind(self) -> Kind:
        """``encoder``, ``decoder`` or ``cross``."""
        return self.site.kind

    @property
    def address(self) -> tuple[int, int, Kind]:
        """Layer, head and kind, as `Lens.substitute` takes them."""
        return self.layer, self.head, self.kind

    @property
    def d_k(self) -> int:
        """Size of a query."""
        return self.queries.shape[1]

    @property
    def output_projection(self) -> Float[Tensor, "d_v d_model"]:
        """W_O, this head's block, without its bias (Brunner: H, Bhardwaj: D)."""
        return self.site.output_projection[self.head].to(self.values.device)

    @cached_property
    def projected(self) -> ProjectedValues:
        """T = V W_O; of a gated or normalised head V: see `projected_for`."""
        fixed = self.site.fixed_projection[self.head].to(self.values.device)
        return ProjectedValues.of(self.values, fixed)

    def row_projection(self, query: int) -> Float[Tensor, "d_v d_model"]:
        """Return diag(g_i) W_O, which projects one row of the head's output; W_O where there is no gate.

        The length by which a norm divides is held as it is.
        """
        projection = wide(self.output_projection)
        return projection if self.gate is None else wide(self.gate[query, :, None]) * projection

    def projected_for(self, query: int) -> ProjectedValues:
        """Return T of one row: V diag(g_i) W_O of a gated head, V of a normalised one.

        The left null space of V diag(g_i) W_O is that of V if no entry of the gate is zero and W_O has full row rank,
        else larger. A row that keeps a V keeps whatever a norm makes of it.
        """
        if self.gate is None or self.site.normed:
            return self.projected
        return ProjectedValues.of(self.values, self.row_projection(query))

    @cached_property
    def attention(self) -> Map:
        """A in float64: `recomputed` if the family's weights equal that up to rounding, else the family's weights.

        Raises:
            InputError: If the weights were not captured.
            UnsupportedModelError: For weights in half precision that cannot be recomputed from queries and keys: their
                rounding errors would change alternatives, intervals and ranks.
        """
        if self.follows_logits:
            return self.recomputed
        if self.family_weights.dtype in HALF:
            raise UnsupportedModelError(
                f"{self.kind} layer {self.layer}, head {self.head} computes its weights in half precision, and not as "
                "a softmax of its queries and keys (an attention sink, or logits that the family changes), so that "
                'they cannot be computed again in float64. Load the model with dtype="float32" (--dtype float32).'
            )
        return wide(self.family_weights)

    @cached_property
    def effective(self) -> Map:
        """Effective attention in float64: the part of A that the output depends on (Brunner et al. 2020, Eq. 9)."""
        return self.projected.effective(self.attention, self.visible)

    @cached_property
    def simplex_nullity(self) -> int:
        """Largest simplex nullity of a row: n − rank([T, 1]) over the keys that it sees."""
        return max(
            space.nullity
            for space in self.projected.simplex_spaces(len(self._asking), self.visible)
        )

    @cached_property
    def recomputed(self) -> Map:
        """softmax(s Q Kᵀ + bias) in float64, with the family's soft cap if it has one.

        The logits have the rank of Q Kᵀ. Weights that the model's precision rounds to zero stay positive.
        """
        return visible_softmax(self.logits, self.visible)

    @cached_property
    def follows_logits(self) -> bool:
        """Whether the family's weights equal `recomputed` up to rounding: see `follow_logits`. Never with a sink."""
        return not self.sink and bool(
            follow_logits(
                self.family_weights,
                self.recomputed,
                self.logits,
                self._asking,
                self.keys,
                self.scaling,
                self.visible,
            )
        )

    @cached_property
    def logits(self) -> Map:
        """S Q Kᵀ + bias in float64, with the family's soft cap if it has one."""
        return attention_logits(
            self._asking,
            self.keys,
            self.scaling,
            self.bias,
            self.softcap,
        )

    @property
    def _asking(self) -> Float[Tensor, "row d_k"]:
        return self.queries if self.rows is None else self.queries[list(self.rows)]

    @property
    def family_weights(self) -> Map:
        """A in the model's own precision, as it was multiplied with the values.

        Raises:
            InputError: If the weights were not captured.
        """
        if self.weights is None:
            raise InputError(
                "this head was captured without its weights; capture with weights=True."
            )
        return self.weights

    def visible_to(self, query: int) -> Bool[Tensor, " key"] | None:
        """Return which keys a query may use; None where every query may use all."""
        return None if self.visible is None else self.visible[self.row_index(query)]

    def row(self, query: int) -> Float[Tensor, " key"]:
        """Return a query's weights: its row of `attention`."""
        return self.attention[self.row_index(query)]

    def row_index(self, query: int) -> int:
        """Return which of the rows is a query's."""
        return query if self.rows is None else self.rows.index(query)

    def refuse_sink(self) -> None:
        """Raise for a head with a learnt sink, whose rows are no distributions over its keys.

        Raises:
            InputError: If the head has a sink.
        """
        if self.sink:
            raise InputError(
                f"{self.kind} layer {self.layer}, head {self.head} has an attention sink (a learnt key without value), "
                "so that its rows do not sum to 1. Intervals and alternatives are not made for such heads; "
                "use audit, which counts the sink as one more key."
            )

    def distributions(
        self, T: ProjectedValues
    ) -> tuple[Map, ProjectedValues, Bool[Tensor, "row key"] | None]:
        """Return rows that sum to 1, T of their keys, and which keys they see: a sink is one more key, of value zero.

        It takes part in the softmax as any key does, however little attention it gets.

        Raises:
            UnsupportedModelError: As `attention`.
        """
        if not self.sink:
            return self.attention, T, self.visible
        rest = (1 - self.attention.sum(-1, keepdim=True)).clamp_min(0.0)
        visible = None if self.visible is None else pad(self.visible, (0, 1), value=True)
        return torch.cat([self.attention, rest], -1), T.with_sink(), visible

    def output_error(self, weights: Map) -> float:
        """Return ‖(A' − A) T‖_F / ‖A T‖_F of other weights A'."""
        compact = self.projected.compact
        lost = torch.linalg.matrix_norm((weights - self.attention) @ compact)
        return float(lost / torch.linalg.matrix_norm(self.attention @ compact).clamp_min(1e-300))


class CapturedLayer(Captured):
    """All heads of one attention layer on one text, with what is `Captured` of them."""

    @classmethod
    def of(
        cls,
        call: AttentionCall,
        site: Site,
        weights: bool = True,
        only: Sequence[int] | None = None,
    ) -> "CapturedLayer":
        """Return the layer of one text's call (see `AttentionCall.only`), with its weights unless they are not asked.

        Weights may be those of ``only`` some rows.
        """
        part = call if only is None else call.rows(only)
        visible, bias = part.visible()[0], part.bias()
        return cls(
            site,
            near(call.query[0]),
            near(call.key[0]),
            near(call.value[0]),
            near(call.run()[0]).transpose(0, 1).clone(),
            near(part.attend()[1][0]) if weights else None,
            None if visible.all() else near(visible),
            call.scaling,
            None if bias is None else near(bias[0]).expand(-1, *visible.shape),
            call.arguments.get("softcap"),
            call.has_sink,
            None if call.gate is None else near(call.gate[0]).transpose(0, 1),
            only,
        )

    @property
    def repeated_values(self) -> Float[Tensor, "head key d_v"]:
        """The values of each head: those of a group once for each of its heads."""
        return self.values.repeat_interleave(len(self.queries) // len(self.values), 0)

    @property
    def heads(self) -> Iterator[Head]:
        """All heads in order."""
        return map(self.head, range(len(self.queries)))

    def head(self, head: int) -> Head:
        """Return one head; the heads of a group share keys and values."""
        heads = len(self.queries)
        parts: dict[str, Any] = {
            name: part[head * len(part) // heads]
            if isinstance(part, Tensor) and part.ndim == 3
            else part
            for name, part in vars(self).items()
        }
        return Head(head=head, group=heads // len(self.values), **parts)
