"""The residual stream at one position, to which heads add, and how the logits read it."""

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from identilens.errors import InputError, UnsupportedModelError
from identilens.linalg.memory import wide
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.proof import NOISE
from identilens.models.threads import Inputs, first_input, hooked

Vector = Float[Tensor, " d_model"]
"""A vector of the residual stream."""


@dataclass(frozen=True)
class Stream:
    """The last hidden state at one position, h = embedding + Σ attention + Σ feed-forward, as the logits read it.

    Attributes:
        scale: g of the final norm with its scale frozen: its output is g ∘ (h − mean), or g ∘ h, plus its shift.
        centred: Whether the norm subtracts the mean.
        shift: The shift of the norm.
        unembedding: The matrix and the bias that make the logits.
        logits: The model's logits at the position.
    """

    scale: Vector
    centred: bool
    shift: Vector
    unembedding: nn.Linear
    logits: Float[Tensor, " token"]

    def direction(self, token: int) -> tuple[Vector, float]:
        """Return u and what the logit of a token has besides: the logit is h·u plus this."""
        row = self.unembedding
        w = row.weight[token].detach().cpu().double()
        bias = 0.0 if getattr(row, "bias", None) is None else float(row.bias[token])
        u = self.scale * w
        return u - u.mean() if self.centred else u, float(self.shift @ w) + bias


def read_stream(lens: Lens, item: Item, position: int) -> Stream:
    """Return the parts of the residual stream of a language model at one position.

    Each layer must add its attention and the output of one of its modules to the stream, and the logits must be a norm
    of the last hidden state times an unembedding. Both are checked with the numbers of the run.

    Raises:
        UnsupportedModelError: For a model that is built otherwise.
    """
    sites, model = lens.sites(item), lens.model
    unembedding = require_unembedding(lens)
    paths = {site.slot[0] if site.slot else "" for site in sites}
    blocks = list(lens.body.get_submodule(min(paths)).children())
    if len(paths) > 1 or "" in paths or len(blocks) != len(sites):
        raise _unsupported(lens, "its layers do not have one attention each, in one list")
    reads: dict[nn.Module, Vector] = {}
    writes: dict[nn.Module, Vector] = {}

    def note(module: nn.Module, inputs: Inputs, output: Any) -> None:
        """Keep the row of one module's input and output."""
        for held, tensor in ((reads, first_input(inputs)), (writes, output)):
            tensor = tensor[0] if isinstance(tensor, tuple) and tensor else tensor
            if isinstance(tensor, Tensor) and tensor.numel() == item.length * tensor.shape[-1]:
                rows = tensor.detach().reshape(item.length, -1)
                held[module] = wide(rows[position]).cpu()

    lens.prove_once([item])
    with hooked(model.modules(), after=note):
        output = lens.run([item], task_head=True)
    logits = output.logits[0, position].detach().cpu().double()
    limit = NOISE[lens.dtype]
    for block, site in zip(blocks, sites, strict=True):
        before, after = reads[block], writes[block]
        left = after - before - writes[site.projection]
        near = limit * float(before.norm() + after.norm())
        written = (writes[part] for part in block.modules() if part in writes)
        rests = [left, *(left - row for row in written if row.shape == left.shape)]
        if min(rest.norm() for rest in rests) > near:
            raise _unsupported(lens, "a layer adds more than attention and feed-forward network")
    last = writes[blocks[-1]]
    norms = [
        norm
        for norm, row in reads.items()
        if torch.equal(row, last) and hasattr(norm, "weight") and norm in writes
        if unembedding in reads and torch.equal(writes[norm], reads[unembedding])
    ]
    frozen = _frozen(norms[-1], last, writes[norms[-1]], limit) if norms else None
    if frozen is None:
        raise _unsupported(lens, "its logits do not read a norm of the last hidden state")
    stream = Stream(*frozen, unembedding, logits)
    token = int(logits.argmax())
    u, besides = stream.direction(token)
    if abs(float(last @ u) + besides - float(logits[token])) > limit * float(logits.abs().max()):
        raise _unsupported(lens, "its logits are not the unembedding of its last norm")
    return stream


def require_unembedding(lens: Lens) -> nn.Linear:
    """Return the linear map that makes a language model's logits.

    Raises:
        UnsupportedModelError: For a model that is no language model.
    """
    linear: Any = lens.model.get_output_embeddings()
    if linear is None:
        raise _unsupported(lens, "it predicts no tokens")
    return linear


def _frozen(
    norm: Any, before: Tensor, after: Tensor, limit: float
) -> tuple[Tensor, bool, Tensor] | None:
    """Return the scale of a norm at one input, whether it subtracts the mean, and its shift; None if it is no norm."""
    weight, bias = norm.weight.detach().cpu().double(), getattr(norm, "bias", None)
    shift = torch.zeros_like(weight) if bias is None else bias.detach().cpu().double()
    for centred, gain in product((False, True), (weight, 1 + weight)):
        flat = gain * (before - before.mean() if centred else before)
        size = (after - shift) @ flat / flat.square().sum()
        if (size * flat + shift - after).norm() <= limit * after.norm():
            return size * gain, centred, shift
    return None


def _unsupported(lens: Lens, why: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"the logits of {type(lens.model).__name__} are not split into heads and source tokens here: {why}. Choose a "
        "language model with a residual stream that a norm and an unembedding read (GPT-2, Llama, Qwen and others)."
    )


def token_of(lens: Lens, words: str) -> int:
    """Return the id of a token that is given by its text, or by its number.

    Raises:
        InputError: If it is not one token of the vocabulary.
    """
    ids = [] if lens.tokenizer is None else lens.tokenizer.encode(words, add_special_tokens=False)
    if len(ids) != 1 and words.isdecimal():
        ids = [int(words)]
    size = len(require_unembedding(lens).weight)
    if len(ids) != 1 or ids[0] >= size:
        raise InputError(
            f"expected a target that is one token, or its number below {size:,}; {words!r} is "
            f"{len(ids)} tokens {list(lens.reader.names(ids))}. Tokens at the start of "
            "a word often begin with a space: ' river'."
        )
    return ids[0]
