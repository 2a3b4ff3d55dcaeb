"""Continuations: what is stored of each token, beside transformers alone, with and without a cache."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, classifier, example, ids
from identilens.errors import InputError, NumericalError, UnsupportedModelError
from identilens.models import candidates
from identilens.models.candidates import Candidates, check_ids

TEXT = ids(5)
EXPERTS = ("gpt_oss", "deepseek_v3")
"""Mixtures of experts, which compute in single precision."""


def made(family, **options):
    lens = idl.Lens(build(family).to(torch.float32 if family in EXPERTS else torch.float64))
    item = lens.read([TEXT])[0]
    return Candidates(lens, item, **options), item.tensors["input_ids"]


@torch.no_grad()
def by_transformers(found, texts):
    """What is stored of each token of some texts of one length, by layer, without our own code."""
    cached = found.stored == "cache"
    output = found.lens.body(
        input_ids=torch.as_tensor(texts), use_cache=cached, output_hidden_states=not cached
    )
    if not cached:
        return output.hidden_states
    # The second is its name below transformers 5.23.
    cache = output.get("cache") or output["past_key_values"]
    pairs = [(layer.keys, layer.values) for layer in cache.layers]
    return [torch.cat([part.transpose(1, 2).flatten(2) for part in pair], -1) for pair in pairs]


@pytest.mark.parametrize(
    ("name", "options", "shared"),
    [
        *((name, {}, True) for name in ("opt", "gpt_neox", "gemma3", "gpt_oss", "deepseek_v3")),
        ("bert_decoder", {}, True),
        ("dyck", {}, False),
        ("gpt2", {}, True),
        ("gpt2", {"layers": (2, 0)}, True),
        ("gpt2", {"layers": (1,)}, True),
        ("llama", {"stored": "cache", "layers": (1,)}, True),
        ("mistral", {}, True),
        ("bert", {"layers": (0, 1)}, False),
    ],
)
def test_what_is_stored_is_what_transformers_computes(name, options, shared, monkeypatch):
    if name == "mistral":
        monkeypatch.setattr(candidates, "_BUDGET", 200_000)
    found, known = made(name, **options)
    assert (found.shared, found.causal) == (shared, name != "bert")
    depth = 2 - (found.stored == "cache")
    assert found.layers == options.get("layers", tuple(range(depth + 1)))
    error = 1e-5 if name in EXPERTS else 1e-9
    for start in (0, 3):
        texts = [[*TEXT[:start], token] for token in range(found.vocabulary)]
        batches = list(found.after(known[:start]))
        assert torch.cat([tokens for tokens, _ in batches]).tolist() == [*range(len(texts))]
        assert (len(batches) > 1) == (name == "mistral")
        expected = by_transformers(found, texts)
        for index, layer in enumerate(found.layers):
            states = torch.cat([states[index] for _, states in batches])
            assert_close(states, expected[layer][:, -1], atol=error, rtol=error)
    texts = torch.stack([known, known.flip(0)])
    numbers, states = zip(*found.batches(texts), strict=True)
    assert torch.cat(numbers).tolist() == [0, 1]
    expected = by_transformers(found, texts)
    for index, layer in enumerate(found.layers):
        whole = torch.cat([batch[index] for batch in states])
        assert_close(whole, expected[layer].flatten(1), atol=error, rtol=error)


@pytest.mark.usefixtures("unchecked_shapes")
def test_texts_and_models_without_continuations_are_refused():
    lens = idl.Lens(build("gpt2").double())
    item = lens.read([TEXT])[0]
    for layers, words in (((3,), r"hidden states of layers 0 to 2; got \[3\]"), ((-1,), "got")):
        with pytest.raises(InputError, match=words):
            Candidates(lens, item, layers)
    with pytest.raises(InputError, match="keys and values of layers 0 to 1"):
        Candidates(lens, item, (2,), stored="cache")
    with pytest.raises(UnsupportedModelError, match="use stored='states'"):
        Candidates(classifier(), classifier().read([TEXT])[0], stored="cache")
    vision = idl.Lens(build("vit"))
    with pytest.raises(InputError, match="text 3 .* pixel_values"):
        check_ids(vision.read(example("vit"))[0], 3)
    paired = {"input_ids": torch.tensor([TEXT]), "token_type_ids": torch.tensor([[0, 0, 1, 1, 1]])}
    bert = idl.Lens(build("bert"))
    with pytest.raises(InputError, match="single texts"):
        check_ids(bert.read(paired)[0], 0)
    check_ids(bert.read(paired | {"token_type_ids": torch.zeros(1, 5, dtype=torch.int64)})[0], 0)
    found = Candidates(lens, item, (0,))
    with torch.no_grad():
        lens.body.get_input_embeddings().weight[TEXT[0]] = torch.nan
    with pytest.raises(NumericalError, match="layer 0"):
        found.read(torch.tensor([TEXT]))


def test_a_cache_that_forgets_is_refused_for_longer_texts():
    """A sliding window of 4 keeps three positions."""
    found, known = made("mistral", stored="cache")
    assert [one.shape[1] for one in found.read(known[None, :3])] == [3, 3]
    words = r"cache of layer 0 keeps 3 positions .* the text has 5.*stored='states'"
    with pytest.raises(InputError, match=words):
        found.read(known[None])
