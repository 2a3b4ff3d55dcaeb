"""The audit computes effective attention with the projector of the public measure."""

import json
import lzma

import numpy as np
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
    limit = 5e-6 if real else 1e-10
    rows = {(row["text"], row["layer"], row["head"], row["kind"]): row
            for row in idl.audit(lens, texts, examples=0, certain_rows=0).table.iter_rows(named=True)}  # fmt: skip
    for text, captured in enumerate(lens.capture(texts, weights=True)):
        for head in captured.heads:
            row = rows.pop((text, head.layer, head.head, head.kind))
            # Some families' eager attention keeps float32 of a float64 model's weights; the audit takes the model's.
            weights = head.family_weights if real else head.attention
            W_O = head.output_projection
            found = effective_attention(
                head.values, weights=weights, output_projection=W_O, visible=head.visible
            )
            share = float(found.null.square().sum() / weights.square().sum())
            assert row["null_share"] == pytest.approx(share, abs=limit)
            output = head.head_output if real else weights @ head.values
            expected = output.double() @ W_O.double()
            lost = found.effective.double() @ head.values.double() @ W_O.double() - expected
            error = float(torch.linalg.matrix_norm(lost) / torch.linalg.matrix_norm(expected))
            assert row["reconstruction_error"] == pytest.approx(error, abs=limit)
            assert row["rank"] == int(found.rank if head.visible is None else found.rank[-1])
    assert not rows


@pytest.mark.parametrize("length", [33, 34, 64, 128])
def test_integers_and_correlation_on_real_text(bundled, data, length):
    """Audit, intervals and alternatives count the same, and the correlation is numpy's of the captured weights."""
    with lzma.open(data / "wiki_en" / "segments_1000.jsonl.xz", "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    for place in (140, 131):
        text = " ".join(json.loads(lines[place])[name] for name in ("par1", "par2"))
        table = idl.audit(bundled, [text], max_length=length, examples=0, certain_rows=0).table
        [captured] = bundled.capture([text], max_length=length, weights=True)
        for head in captured.heads:
            row = table.filter(layer=head.layer, head=head.head).row(0, named=True)
            assert (
                row["simplex_nullity"]
                == head.projected.simplex_space().nullity
                == head.simplex_nullity
            )
            assert row["rank"] == int(head.projected.rank)
            weights = head.family_weights.double()
            pair = np.stack([weights.flatten(), head.projected.effective(weights).flatten()])
            # The null space of nearly square values follows every rounding of the layers before.
            limit = 1e-4 if length < 64 else 1e-6
            assert row["pearson"] == pytest.approx(np.corrcoef(pair)[0, 1], abs=limit)
