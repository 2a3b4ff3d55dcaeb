"""What no measure can be taken of: a table of one word of the message, the kind of error, and the call."""

import pytest
import torch

from helpers.heads import causal, random_qkt, random_weights, seeded
from identilens.errors import InputError, NumericalError
from identilens.linalg.projected import ProjectedValues
from identilens.measures.attention import (
    attention_intervals,
    certain_mass,
    effective_attention,
    functional_interval,
    logit_rank_study,
    norm_share,
    removal_effect,
    sample_alternatives,
    softmax_map,
)
from identilens.measures.structure import (
    efficient_attention,
)
from identilens.measures.tokens.lookup import look_up
from identilens.measures.tokens.probes import Probe

pytestmark = pytest.mark.usefixtures("unchecked_shapes")
A, T = random_weights(0, 6, 2)
Q, K, V = random_qkt(0, 6, 3, 2)
NAN = torch.nan
BROKEN = torch.where(torch.arange(12).reshape(6, 2) == 3, NAN, T)
NO_KEY = torch.zeros(6, 6, dtype=torch.bool)
EYE = torch.eye(2)
STATES = torch.randn(8, 4, generator=seeded())
HEADS = torch.ones(2, 6, 3)

INPUTS = {
    "hides every key": [
        lambda: sample_alternatives(A, T, 1, visible=NO_KEY),
        lambda: effective_attention(T, weights=A, visible=NO_KEY),
    ],
    "hidden keys": [
        lambda: sample_alternatives(A, T, 1, visible=causal(6)),
        lambda: attention_intervals(A[0], T, visible=causal(6)[0]),
    ],
    "sum to 1": [
        lambda: sample_alternatives(2 * A, T, 1),
        lambda: certain_mass(A / 2, T),
        lambda: attention_intervals(A[0] / 2, T),
    ],
    "6 keys": [
        lambda: sample_alternatives(A, T[:4], 1),
        lambda: attention_intervals(A[0], T[:3]),
        lambda: logit_rank_study(A, T[:5], 4, count=10),
        lambda: norm_share(torch.ones(1, 3) / 3, T),
    ],
    "softmax": [lambda: sample_alternatives(A - 0.5, T, 1)],
    "share": [
        lambda: sample_alternatives(A, T, 1, share=1.5),
        lambda: sample_alternatives(A, T, 1, share=0.5, method="uniform"),
    ],
    "d_k": [lambda: logit_rank_study(A, T, 0, count=10)],
    "boolean mask": [
        lambda: softmax_map(Q, K, V, visible=torch.ones(5, 6, dtype=torch.bool)),
        lambda: effective_attention(T, weights=A, visible=torch.ones(6, 6)),
    ],
    "functional": [lambda: functional_interval(A[0], T, torch.ones(6))],
    "at least one key": [
        lambda: effective_attention(T[:0], weights=A[:, :0]),
        lambda: softmax_map(Q[:0], K[:0], V[:0]),
    ],
    "weight.T": [
        lambda: effective_attention(T, weights=A, output_projection=torch.ones(4, 2)),
        lambda: ProjectedValues.of(T, torch.ones(4, 2)),
    ],
    "must be a dense tensor": [
        lambda: ProjectedValues.of(EYE, [[1]]),
        lambda: certain_mass(A.to_sparse(), T),
        lambda: softmax_map("q", A, T),
    ],
    "tensor": [
        lambda: certain_mass([[0.5, 0.5]], T),
        lambda: attention_intervals([0.5, 0.5], T),
        lambda: attention_intervals(None, T),
        lambda: sample_alternatives(A, T, A),
    ],
    "A\\[i\\]": [lambda: attention_intervals(A, T)],
    "the values are projected": [
        lambda: effective_attention(ProjectedValues.of(T), weights=A, output_projection=EYE)
    ],
    "for each head": [
        lambda: ProjectedValues.of(HEADS, torch.ones(3, 3, 4)),
    ],
    "weights must be": [
        lambda: effective_attention(T, weights=A[0]),
    ],
    "query, key": [lambda: removal_effect(A[0], T), lambda: removal_effect(None, T)],
    "tolerance": [
        lambda: certain_mass(A, T, tolerance="1%"),
    ],
    "wide": [lambda: Probe().score(STATES, STATES[:, :3], [8])],
}
NUMBERS = {
    "weights has 1 NaN": [
        lambda: attention_intervals(torch.tensor([NAN, 0.5, 0.5, 0, 0, 0]).double(), T),
        lambda: removal_effect(torch.full((1, 1), NAN), T[:1]),
    ],
    "projected_values has": [lambda: sample_alternatives(A, T * torch.inf, 1)],
    "values has 1 NaN": [
        lambda: efficient_attention(A, BROKEN),
        lambda: ProjectedValues.of(BROKEN),
    ],
    "has .* NaN": [
        lambda: look_up(STATES * NAN, STATES, [8], distance="l2"),
        lambda: look_up(STATES, STATES * NAN, [8], distance="l2"),
        lambda: Probe().fit(STATES, STATES, STATES, STATES * NAN),
    ],
    "queries has": [lambda: softmax_map(Q * NAN, K, V)],
    "bias has": [
        lambda: softmax_map(Q, K, V, bias=torch.zeros(6, 6) * NAN),
    ],
    "coefficients has 1 NaN": [
        lambda: functional_interval(A[0], T, torch.tensor([[1.0, NAN, 0, 0, 0, 0]]))
    ],
}


CASES = [
    (kind, word, call)
    for kind, words in ((InputError, INPUTS), (NumericalError, NUMBERS))
    for word, calls in words.items()
    for call in calls
]


@pytest.mark.parametrize(("kind", "word", "call"), CASES)
def test_what_has_no_measure_is_refused(kind, word, call):
    with pytest.raises(kind, match=word):
        call()
