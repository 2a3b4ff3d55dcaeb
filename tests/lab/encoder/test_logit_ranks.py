"""Logit ranks of alternatives: the numbers, and how they are drawn."""

import torch

import identilens as idl

TEXT = (
    "Nobody in the village was surprised, because the old people had said for weeks that the ice in the hills would go "
    "at once, and that the lower meadow would stand under water until the end of the month."
)


def test_logit_ranks_of_alternatives_exceed_what_the_head_can_give(bundled):
    texts = [TEXT, TEXT + " " + TEXT]
    table = idl.lab.logit_ranks(bundled, texts, layers=[0, 4], heads=[3], count=5)
    assert table["text"].unique().to_list() == [1], "a text shorter than 2 d_v takes no part"
    assert (table["original_rank"] <= 32).all()
    assert (table["lowest_rank"] > 32).all()
    assert (table["highest_rank"] <= table["n_key"] - 1).all()
    assert (table["realisable_share"] == 0).all()
    assert table["output_error"].max() < 1e-9


def test_logit_ranks_of_attention_that_underflows(bundled):
    text = TEXT + " " + TEXT
    query = bundled.model.encoder.layer[0].attention.self.query.weight
    kept = query.detach().clone()
    try:
        with torch.no_grad():
            query.mul_(40)
        head = bundled.layer(bundled.read([text])[0], 0).head(3)
        assert (head.weights == 0).any()
        assert (head.recomputed > 0).all()
        assert head.follows_logits
        table = idl.lab.logit_ranks(bundled, [text], layers=[0], heads=[3], count=5)
    finally:
        with torch.no_grad():
            query.copy_(kept)
    assert (table["original_rank"] <= 32).all()
    assert (table["highest_rank"] <= table["n_key"] - 1).all()
