"""Parts of the residual stream: they add up to the state that the logits read, family by family; refusals."""

import pytest
import torch
from torch.testing import assert_close

import identilens as idl
from helpers.chats import answering
from helpers.heads import seeded
from helpers.reference import effective_svd
from helpers.zoo import build, gemma, ids
from identilens.errors import InputError, UnsupportedModelError
from identilens.measures.mixing import alti_contributions
from identilens.measures.mixing.rollout import attention_rollout, mean_over_heads
from identilens.models.continuations import answer_ids, followed
from identilens.models.rollouts import final_rollouts, rollouts_by_kind, self_attention
from identilens.models.stream import read_stream, require_unembedding, token_of


def made(name):
    """A model whose norms, biases and shifts are not those of its initialisation."""
    model = gemma() if name == "gemma" else build(name)
    generator = seeded()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim == 1:
                weight += 0.3 * torch.randn(len(weight), generator=generator)
    return idl.Lens(model.double())


def squared(_module, _args, output):
    return (output[0].square(), *output[1:]) if isinstance(output, tuple) else output.square()


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "gpt_neox", "opt", "gemma"])
def test_a_logit_reads_the_last_state_along_its_direction(name):
    lens = made(name)
    [*_, norm] = [
        one
        for path, one in lens.model.named_modules()
        if "Norm" in type(one).__name__ and not any(map(str.isdigit, path))
    ]
    states = []
    with norm.register_forward_pre_hook(lambda _, args: states.append(args[0][0])), torch.no_grad():
        logits = lens.model(input_ids=torch.tensor([ids(9)])).logits[0]
    for position in (0, 4):
        stream = read_stream(lens, lens.read([ids(9)])[0], position)
        assert_close(stream.logits, logits[position])
        for token in (0, 5, 77):
            u, besides = stream.direction(token)
            read = float(states[0][position] @ u) + besides
            assert read == pytest.approx(float(logits[position, token]), abs=1e-7)
        assert stream.centred == (name in ("gpt2", "gpt_neox", "opt"))


def test_models_that_are_built_otherwise_are_refused():
    encoder = idl.Lens(build("bert"))
    with pytest.raises(UnsupportedModelError, match="it predicts no tokens"):
        require_unembedding(encoder)
    for part, words in (
        ("lm_head", "not the unembedding of its last norm"),
        ("transformer.ln_f", "do not read a norm of the last hidden state"),
        ("transformer.h.0", "a layer adds more"),
    ):
        lens = made("gpt2")
        lens.model.get_submodule(part).register_forward_hook(squared)
        with pytest.raises(UnsupportedModelError, match=words):
            read_stream(lens, lens.read([ids(9)])[0], 3)


def test_tokens_and_answers_are_named_by_their_text():
    plain, lens = idl.Lens(build("gpt2")), answering("llama")
    size = require_unembedding(plain).weight.shape[0]
    assert [token_of(plain, str(number)) for number in (0, size - 1)] == [0, size - 1]
    known = lens.tokenizer.convert_tokens_to_ids("a")
    assert token_of(lens, "a") == known
    assert token_of(lens, "12") == 12, "two tokens, so it is a number"
    assert token_of(lens, "7") == lens.tokenizer.convert_tokens_to_ids("7")
    for one, words, message in (
        (plain, str(size), "1 tokens"), (plain, "a", "0 tokens"), (lens, "ab", r"\['a', 'b'\]"),
    ):  # fmt: skip
        with pytest.raises(InputError, match=message):
            token_of(one, words)
    space, b = lens.tokenizer.convert_tokens_to_ids([" ", "b"])
    assert answer_ids(lens, "ab") == [(known, b), (space, known, b)]
    assert answer_ids(lens, " ab") == [(space, known, b)]
    assert answer_ids(lens, "ß") == [], "its tokens are unknown"
    item = lens.read("b")[0]
    before = item.tensors["input_ids"].tolist()
    assert followed(lens, item, ()) is item
    assert followed(lens, item, (known, b)).tensors["input_ids"].tolist() == [*before, known, b]


N = 7


def plain_parts(layer, captured, stream):
    """T_ij before any norm, [query, key, d_model], head by head and key by key."""
    parts = torch.zeros(N, N, stream.shape[1]).double()
    for head in captured.heads:
        values = head.values @ head.output_projection
        parts += head.weights[:, :, None] * values[None]
    return parts


def references(family):
    """Norms and ALTI contributions of each layer, and the norm's output that ALTI's parts must add up to."""
    lens = idl.Lens(build(family).double())
    [text] = lens.capture(ids(N), weights=True, hidden_states=True)
    norms, contributions = [], []
    for number, captured in enumerate(text.layers):
        stream = text.hidden_states["encoder"][number]
        parts = plain_parts(number, captured, stream)
        norms.append(parts.norm(dim=-1))
        whole = parts + torch.eye(N)[:, :, None] * stream[None]
        output = whole.sum(1) + captured.site.output_bias
        if family == "bert":
            norm = lens.body.encoder.layer[number].attention.output.LayerNorm
            sigma = (output.var(-1, unbiased=False) + norm.eps).sqrt()
            whole = (whole - whole.mean(-1, keepdim=True)) / sigma[:, None, None] * norm.weight
            output = norm(output)
        contributions.append(alti_contributions(whole, output))
    return lens, norms, contributions


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_rollouts_are_those_of_plain_products(family):
    """A norm after the attention block, and one before it with grouped heads."""
    with torch.no_grad():
        lens, norms, contributions = references(family)
        [item] = lens.read([ids(N)])
        found = final_rollouts(lens, item)
        expected = attention_rollout(torch.stack([mean_over_heads(one[None]) for one in norms]))[-1]
        assert_close(found["norm"], expected)
        assert_close(found["alti"], contributions[1] @ contributions[0], atol=1e-6, rtol=1e-5)
        [pair] = rollouts_by_kind(self_attention(lens, item)).values()
        assert_close(found["raw"], pair.raw[-1], atol=1e-6, rtol=1e-5)
        assert_close(found["effective"], pair.effective[-1], atol=1e-6, rtol=1e-5)
    for one in found.values():
        assert_close(one.sum(-1), torch.ones(N).double(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", ["bert", "llama"])
@torch.no_grad()
def test_effective_rollouts_are_those_of_effective_attention_over_the_keys_that_are_seen(family):
    count = 20  # more than d_v: weights and effective attention differ
    lens = idl.Lens(build(family).double())
    [text] = lens.capture(ids(count), weights=True)
    visible = torch.ones(count, count).tril().bool() if family == "llama" else None
    means = []
    for captured in text.layers:
        heads = [
            effective_svd(head.weights, head.values @ head.output_projection, visible)
            for head in captured.heads
        ]
        means.append(mean_over_heads(torch.stack(heads)))
    [pair] = rollouts_by_kind(self_attention(lens, lens.read([ids(count)])[0])).values()
    expected = attention_rollout(torch.stack(means))
    assert (pair.effective - pair.raw).abs().max() > 0.01
    assert_close(pair.effective, expected, atol=1e-6, rtol=1e-5)
