"""Rank against length: the audit's numbers, and what the two kinds of heads can reach."""

import pytest
import torch

import identilens as idl
from identilens.lab.encoder.configuration import IdentifiableEncoderConfig
from identilens.lab.encoder.modeling import IdentifiableEncoderModel
from identilens.lab.encoder.rank_lengths import rank_by_length
from identilens.lab.encoder.training import build_tokenizer

WORDS = [f"word{number}" for number in range(200)]


@pytest.fixture(scope="module")
def texts():
    order = [
        torch.randperm(200, generator=torch.Generator().manual_seed(seed)) for seed in range(4)
    ]
    return [
        " ".join(WORDS[index] for index in own[: 30 + 10 * row].tolist())
        for row, own in enumerate(order)
    ]


def lens(heads, texts):
    torch.manual_seed(0)
    tokenizer = build_tokenizer(texts, max_length=64)
    config = IdentifiableEncoderConfig(
        vocab_size=len(tokenizer),
        heads=heads,
        hidden_size=48,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    return idl.Lens(IdentifiableEncoderModel(config).eval(), tokenizer)


@pytest.mark.parametrize(("heads", "bound"), [("concat", 12), ("add", 48)])
def test_rank_is_the_smaller_of_length_and_d_v(heads, bound, texts):
    found = rank_by_length(
        lens(heads, texts), texts, lengths=(8, 20, 31), per_length=3, heads=(0, 3)
    )
    assert len(found) == 3 * 3 * 2
    expected = [min(length, bound) for length in found["seq_len"]]
    assert found["rank"].to_list() == expected
    assert (found["seq_len"] - found["rank"]).to_list() == found["nullity"].to_list()
