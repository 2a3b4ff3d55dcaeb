"""Heads for tests: random ones, and those of the bundled encoder taken out by plain torch."""

from typing import NamedTuple

import torch
from hypothesis import strategies as st

seeds = st.integers(0, 10**6)
TEXT = (
    "The river had risen during the night, and by morning the lower meadow lay under a sheet of brown water in which "
    "the fence posts stood like the teeth of a broken comb. Nobody in the village was surprised, because the old "
    "people had said for weeks that the ice in the hills would go at once."
)

TEXTS = [
    "The ferry left the harbour before dawn, and nobody on the quay could say who had paid for it. "
    "Letters arrived for weeks afterwards, each with a different stamp.",
    "Stop.",
    "A good map leaves things out, and the reader seldom notices that anybody decided.",
]
"""A text of some length, a very short one, and one between."""


class RealHead(NamedTuple):
    """What one head of one text is made of, in float64."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    output_projection: torch.Tensor
    embeddings: torch.Tensor
    weights: torch.Tensor


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def doubles(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def normals(generator, *shape):
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def uniforms(generator, *shape):
    """Numbers from 0 to 1 in float64."""
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


def seen_of(visible, weights):
    """The keys that rows of weights see: all of them where there is no mask."""
    return torch.ones_like(weights, dtype=torch.bool) if visible is None else visible


def drawn(*shape, seed=0):
    """Standard normal numbers in float64 of a seed."""
    return normals(seeded(seed), *shape)


def causal(n):
    return torch.ones(n, n, dtype=torch.bool).tril()


def softmax_of(logits, visible=None):
    """The weights of logits over the keys that each row sees."""
    if visible is not None:
        logits = logits.masked_fill(~visible, -torch.inf)
    return logits.softmax(-1)


def random_qkt(seed, n, d_k, d_v, n_query=None):
    generator = seeded(seed)
    sizes = ((n_query or n, d_k), (n, d_k), (n, d_v))
    return [normals(generator, *size) for size in sizes]


def random_weights(seed, n, d, sharpness=1.0, visible=None):
    generator = seeded(seed)
    T = normals(generator, n, d)
    return softmax_of(sharpness * normals(generator, n, n), visible), T


def load_encoder(path):
    """Model in float64 and the ids of TEXT."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(path, dtype=torch.float64, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(path)(TEXT, return_tensors="pt")["input_ids"]


@torch.no_grad()
def real_head(model, ids, layer, head):
    """Head of a BERT encoder from its own parameters and hidden states."""
    found = model(ids, output_hidden_states=True, output_attentions=True)
    hidden = found.hidden_states[layer][0]
    block = model.encoder.layer[layer].attention
    size = model.config.hidden_size // model.config.num_attention_heads
    part = slice(size * head, size * (head + 1))
    q, k, v = (
        torch.nn.functional.linear(hidden, layer_.weight[part], layer_.bias[part])
        for layer_ in (block.self.query, block.self.key, block.self.value)
    )
    return RealHead(
        q,
        k,
        v,
        block.output.dense.weight[:, part].T.clone(),
        hidden,
        found.attentions[layer][0, head],
    )


def watched_attention(lens, name, text):
    """Return an attention module, and the states, output and weights of its call when the model runs on a text."""
    module, seen = lens.body.get_submodule(name), {}

    def note(_module, args, kwargs, output):
        seen["states"] = args[0] if args else kwargs["hidden_states"]
        seen["output"], seen["weights"] = output[0][0], output[1]

    with module.register_forward_hook(note, with_kwargs=True), torch.no_grad():
        lens.body(torch.tensor([text]))
    return module, seen


def masks(n):
    """Masks of every form, by name; True where a query sees a key."""
    i, j = torch.arange(n)[:, None], torch.arange(n)[None]
    return {
        "full": None,
        "causal": j <= i,
        "window": (j <= i) & (j > i - 11),
        "local": (i - j).abs() <= 3,
        "prefix": (j <= i) | (j < n // 3),
        "random": (torch.rand(n, n, generator=seeded(n)) < 0.6) | (i == j),
    }
