"""The audit computes effective attention with the projector of the public measure."""

import pytest
import torch

import identilens as idl
from helpers.zoo import build, ids
from identilens.measures.attention import effective_attention

TEXTS = ["Rain.", "The old bridge was closed in winter, and nobody in the village had a key. " * 3]


@pytest.mark.parametrize("family", ["bundled", "gpt2", "mistral", "t5"])
def test_null_share_and_reconstruction_are_those_of_effective_attention(family, request):
    real = family == "bundled"
    lens = request.getfixturevalue("bundled") if real else idl.Lens(build(family).double())
    texts = TEXTS if real else [ids(5), ids(40, 1)]
    # Single precision rounds twice: the audit's outputs are the model's own, not A V in double precision.
    limit, rounding = (5e-6, 5e-6) if real else (1e-10, 1e-6)
    rows = {(row["text"], row["layer"], row["head"], row["kind"]): row
            for row in idl.audit(lens, texts, examples=0, certain_rows=0).table.iter_rows(named=True)}  # fmt: skip
    for text, captured in enumerate(lens.capture(texts, weights=True)):
        for head in captured.heads:
            row = rows.pop((text, head.layer, head.head, head.kind))
            # Some families' eager attention keeps float32 of a float64 model's weights.
            weights = head.family_weights.double()
            W_O = head.output_projection
            found = effective_attention(
                head.values, weights=weights, output_projection=W_O, visible=head.visible
            )
            share = float(found.null.square().sum() / weights.square().sum())
            assert row["null_share"] == pytest.approx(share, abs=limit)
            expected = head.head_output.double() @ W_O.double()
            lost = found.effective.double() @ head.values.double() @ W_O.double() - expected
            error = float(torch.linalg.matrix_norm(lost) / torch.linalg.matrix_norm(expected))
            assert row["reconstruction_error"] == pytest.approx(error, abs=rounding)
            assert row["rank"] == int(found.rank if head.visible is None else found.rank[-1])
    assert not rows
