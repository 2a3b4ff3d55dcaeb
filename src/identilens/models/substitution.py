"""Running a model with attention weights from the caller."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    PreTrainedModel,
)

from identilens.errors import InputError
from identilens.linalg.checks import check_finite
from identilens.linalg.memory import near, wide
from identilens.models.inputs import Item
from identilens.models.interface import AttentionCall
from identilens.models.layout import Site, Sites, find_site
from identilens.models.sequences import Kind

Address = tuple[int, int] | tuple[int, int, Kind]
"""A head: layer, number, and its kind if the model has several."""


@dataclass(frozen=True)
class Rows:
    """Weights for some rows of an attention map; the other rows keep the model's weights."""

    queries: Sequence[int]
    weights: Float[Tensor, "row key"]


@dataclass(frozen=True)
class ModelRun:
    """A model's result on one text: embedding output and every layer's output by sequence, and its task head's output.

    ``logits`` are None for a model without a head, ``loss`` is that of a language model on the text itself.
    """

    hidden_states: dict[str, Float[Tensor, "layer position d_model"]]
    logits: Tensor | None
    loss: float | None


Replacements = Mapping[Address, Float[Tensor, "query key"] | Rows]


class Substitution:
    """Handles attention calls of one text with the family's attention; some heads get given weights.

    Raises:
        InputError: For a head the model lacks; when called, for weights of another shape or on a hidden key.
        NumericalError: When called, for weights that are NaN or infinite.
    """

    def __init__(self, sites: Sites, replacements: Replacements) -> None:
        self._sites = sites
        self._weights = [
            (find_site(sites, *address), address[1], weights)  # pyright: ignore[reportArgumentType]
            for address, weights in replacements.items()
        ]

    def __call__(self, call: AttentionCall) -> Tensor:
        """Return the output of one attention call (batch of one)."""
        output, site = call.mixed(), self._sites[call.index]
        for number, head, weights in self._weights:
            if number == call.index:
                rows = (
                    weights if isinstance(weights, Rows) else Rows(range(output.shape[1]), weights)
                )
                put_rows(output, 0, rows, site, head, call)
        return output


def put_rows(
    output: Tensor, text: int, rows: Rows, site: Site, head: int, call: AttentionCall
) -> None:
    """Change a head's output on a text of a call to that of given rows.

    Raises:
        InputError: As `Substitution`, and NumericalError.
    """
    where = f"{site.kind} layer {site.layer}, head {head}"
    queries, keys = call.query.shape[2], call.key.shape[2]
    expected = (len(rows.queries), keys)
    if tuple(rows.weights.shape) != expected:
        raise InputError(
            f"{where}: expected weights of shape {expected} (a row per query, a column per key of this text); got "
            f"{tuple(rows.weights.shape)}. Give weights of the same text, or Rows for some of its queries."
        )
    if expected[0] and not 0 <= min(rows.queries) <= max(rows.queries) < queries:
        raise InputError(
            f"{where}: the text has queries 0 to {queries - 1}; got {list(rows.queries)}."
        )
    check_finite(weights=rows.weights)
    visible = near(call.rows(rows.queries).visible()[0]).to(rows.weights.device)
    if rows.weights.masked_fill(visible, 0.0).any():
        raise InputError(
            f"{where}: the weights to put in use keys that the model hides from these queries. "
            "Set them to zero."
        )
    values = wide(call.value[text, head // (site.heads // call.value.shape[1])])
    # Mixed in double precision, so that the given weights are not rounded.
    mixed = rows.weights.to(values) @ values
    output[text, list(rows.queries), head] = mixed.type_as(output)


def text_losses(
    model: PreTrainedModel, item: Item, logits: Tensor | None
) -> Float[Tensor, " change"] | None:
    """Return a language model's mean cross-entropy on the text itself for each element of a batch of its logits.

    None for other models. Causal models and decoders predict the next token, masked ones that of each position.
    """
    mappings: Any = (
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        MODEL_FOR_MASKED_LM_MAPPING,
        MODEL_FOR_CAUSAL_LM_MAPPING,
    )
    config = type(model.config)
    decodes, masked, causal = (isinstance(model, mapping.get(config, ())) for mapping in mappings)
    # Some encoder–decoders are also listed as masked language models.
    masked = masked and not decodes
    ids = item.tensors.get("decoder_input_ids" if decodes else "input_ids")
    known = decodes or masked or causal
    if ids is None or logits is None or logits.ndim != 3 or not known:
        return None
    if not masked:
        logits, ids = logits[:, :-1], ids[1:]
    return torch.stack([cross_entropy(part, ids.to(part.device)) for part in wide(logits)])
