"""One attention head on one text, with everything that its weights are computed from."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import Kind, Site, find_site
from identilens.models.lens import Lens


@dataclass(frozen=True)
class HeadCall:
    """What one head computes with on one text.

    Attributes:
        site: The layer.
        head: Counts from 0.
        queries: Q, positions applied.
        keys: K, positions applied; shared by the heads of a group.
        values: V, bias included; shared likewise.
        weights: A after softmax, as the model's family computes it.
        visible: Which keys each query may use; None when every key.
        scaling: Factor of the dot product.
        bias: Position bias added to the logits, where the family has one.
        group: Query heads that share these keys and values.
    """

    site: Site
    head: int
    queries: Float[Tensor, "query d_k"]
    keys: Float[Tensor, "key d_k"]
    values: Float[Tensor, "key d_v"]
    weights: Float[Tensor, "query key"]
    visible: Bool[Tensor, "query key"] | None
    scaling: float
    bias: Float[Tensor, "query key"] | None
    group: int

    @property
    def output_projection(self) -> Float[Tensor, "d_v d_model"]:
        """W_O, this head's block, bias left out."""
        return self.site.output_projection[self.head]

    @property
    def recomputed(self) -> Float[Tensor, "query key"]:
        """softmax(s Q Kᵀ + bias) in float64, where weights stay positive that the model's precision rounds to zero."""
        logits = self.scaling * self.queries.double() @ self.keys.double().mT
        if self.bias is not None:
            logits = logits + self.bias.double()
        if self.visible is not None:
            logits = logits.masked_fill(~self.visible, -torch.inf)
        return torch.softmax(logits, -1)

    @property
    def logit_error(self) -> float:
        """Largest difference between A and softmax(s Q Kᵀ + bias): large for soft-capped logits and sinks."""
        return float((self.recomputed - self.weights.double()).abs().max())


def read_head(lens: Lens, item: Item, layer: int, head: int, kind: Kind | None = None) -> HeadCall:
    """Return one head as it computes on one text.

    Args:
        lens: The model.
        item: The text.
        layer: Counts from 0 within its kind.
        head: Counts from 0.
        kind: ``encoder``, ``decoder`` or ``cross``; needed where the model has several.

    Raises:
        InputError: If the model has no such head.
        UnsupportedModelError: If the attention cannot be captured faithfully.
    """
    sites = lens.sites(item)
    wanted = find_site(sites, layer, head, kind)
    found: list[HeadCall] = []

    def keep(call: AttentionCall) -> Tensor:
        output, weights = call.attend()
        if call.index == wanted:
            found.append(_head_of(call, sites[wanted], head, weights))
        return output

    lens.run([item], keep)
    return found[0]


def _head_of(call: AttentionCall, site: Site, head: int, weights: Tensor) -> HeadCall:
    size = site.heads // call.value.shape[1]
    rows, columns = call.query.shape[-2], call.key.shape[-2]
    bias, scaling, visible = call.arguments.get("position_bias"), call.arguments.get("scaling"), call.visible()
    if bias is not None:
        bias = bias[0, head if bias.shape[1] > 1 else 0, :rows, :columns].expand(rows, columns).clone()
    if visible is not None:
        visible = None if bool(visible.all()) else visible[0].expand(rows, columns).clone()
    return HeadCall(
        site,
        head,
        call.query[0, head].clone(),
        call.key[0, head // size].clone(),
        call.value[0, head // size].clone(),
        weights[0, head].clone(),
        visible,
        call.query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        bias,
        size,
    )
