"""What is refused before an alternative is sought, and what comes back when there is nothing to do."""

import inspect

import pytest
import torch

from helpers.heads import causal, random_weights
from identilens.errors import InputError
from identilens.linalg import (
    ProjectedValues,
    relative_tolerance,
)
from identilens.linalg.checks import explained
from identilens.linalg.softmax import attention_logits, visible_softmax
from identilens.measures import attention
from identilens.measures.attention import (
    attention_intervals,
    certify_row,
    chain_mixing,
    effective_attention,
    far_alternative,
    far_alternatives,
    least_logit_rank,
    logit_alternative,
    logit_rank_study,
    maximum_entropy_alternative,
    minimum_norm_alternative,
    numerical_rank,
    sample_alternatives,
    simplex_space,
    total_variation,
    uniform_alternatives,
)
from identilens.measures.attention.billiard import analytic_centre
from identilens.measures.attention.determined import certain_weights
from identilens.measures.attention.logits import check_logit_alternative
from identilens.measures.attention.simplex import largest_step

DEFAULTS = {
    attention.attention_intervals: {"tolerance": 0.0}, attention.certain_mass: {"tolerance": 0.0},
    attention.certain_mass_bounds: {"rounds": 4}, attention.certify_row: {"order": True, "tolerance": 0.0},
    attention.far_alternative: {"starts": 8}, attention.far_alternatives: {"starts": 8},
    attention.functional_interval: {"tolerance": 0.0}, attention.logit_alternative: {"scale": 1.0},
    attention.logit_rank_study: {"count": 1000, "share": 0.99},
    attention.maximum_entropy_alternative: {"max_steps": 200},
    attention.realisable_alternative: {"distance": 0.1, "max_steps": 300},
    attention.removal_effect: {"relative": False},
    attention.tied_alternative: {"distance": 0.1, "max_steps": 300},
    certain_weights: {"tolerance": 0.0},
}  # fmt: skip
"""Numbers and switches that are taken where nothing is given."""

METHODS = ("brunner", "bhardwaj", "uniform")


@pytest.mark.parametrize("visible", ["causal", causal(5)])
@pytest.mark.parametrize("heads", [(), (2, 3)])
def test_weight_on_hidden_keys_has_no_effective_part(visible, heads):
    """The projector would spread what stands on the hidden keys over the visible ones."""
    values = torch.randn(*heads, 5, 3, dtype=torch.float64)
    weights = torch.rand(*heads, 5, 5, dtype=torch.float64).mul(0.1).tril() + torch.eye(5)
    expected = effective_attention(values, weights=weights, visible=visible)
    rounded = weights.clone()
    rounded[..., 1, 3] = 9e-4
    found = effective_attention(values, weights=rounded, visible=visible)
    assert torch.equal(found.effective, expected.effective)
    assert torch.equal(found.null, expected.null)
    rounded[(*(size - 1 for size in heads), 1, 3)] = 0.01
    where = r"row 1 of head \[1, 2\] puts 0.01" if heads else "row 1 puts 0.01"
    with pytest.raises(
        InputError, match=f"no weight on hidden keys; {where} on a key that `visible` hides"
    ):
        effective_attention(values, weights=rounded, visible=visible)


def test_hidden_keys_of_a_window_of_more_queries_than_keys():
    visible = torch.tensor([[1, 0], [1, 1], [0, 1]]).bool()
    with pytest.raises(InputError, match="no weight on hidden keys; row 2"):
        effective_attention(
            torch.randn(2, 3), weights=torch.tensor([[1.0, 0], [0, 1], [1, 0]]), visible=visible
        )


@pytest.mark.parametrize("visible", [None, torch.ones(0, 5, dtype=torch.bool)])
def test_no_query_gives_no_alternative(visible):
    _, T = random_weights(0, 5, 2)
    none = torch.zeros(0, 5, dtype=torch.float64)
    assert effective_attention(T, weights=none, visible=visible).effective.shape == (0, 5)
    assert effective_attention(
        T, head_output=torch.zeros(0, 2), visible=visible
    ).effective.shape == (0, 5)
    for method in METHODS:
        assert sample_alternatives(none, T, 2, method=method, visible=visible).shape == (2, 0, 5)
    assert far_alternatives(none, T, visible=visible).shape == (0, 5)
    even = maximum_entropy_alternative(none, T, visible=visible)
    assert (even.weights.shape, even.queries.shape, even.keys.shape) == ((0, 5), (0, 2), (5, 2))


@pytest.mark.parametrize("visible", [None, "causal", causal(5), causal(5).T | causal(5)])
def test_no_head_gives_empty_results(visible):
    values, weights = torch.zeros(0, 3, 5, 2), torch.zeros(0, 3, 5, 5)
    for given in ({"weights": weights}, {"head_output": values}):
        found = effective_attention(values, visible=visible, **given)
        assert found.effective.shape == (0, 3, 5, 5)
        assert found.rank.shape == found.nullity.shape == ((0, 3) if visible is None else (0, 3, 5))
    report = numerical_rank(values, torch.zeros(3, 2, 8))
    assert report.rank.shape == report.simplex_nullity.shape == (0, 3)
    assert least_logit_rank(torch.zeros(0, 5, 5)).shape == (0,)
    assert int(least_logit_rank(torch.zeros(0, 5))) == 0


def test_no_draw_gives_an_empty_tensor():
    A, T = random_weights(0, 5, 2)
    assert uniform_alternatives(A[0], simplex_space(T), 0).shape == (0, 5)
    for method in METHODS:
        assert sample_alternatives(A, T, 0, method=method).shape == (0, 5, 5)


def empty_calls():
    A, T = random_weights(0, 5, 2)
    none, no_keys = torch.zeros(0, 5).double(), torch.zeros(0, 2).double()
    space = simplex_space(T)
    yield "at least one query; got none", lambda: logit_rank_study(none, T, 3, count=2)
    yield "at least one query over the 5 rows of T", lambda: logit_alternative(none, T, 3)
    yield (
        "at least one query over the 5 rows of T",
        lambda: check_logit_alternative(none, none, T, 3),
    )
    yield "at least one key; got none", lambda: largest_step(torch.zeros(2, 0), torch.zeros(2, 0))
    for function in (attention_intervals, certify_row, minimum_norm_alternative):
        yield (
            "with at least one key; got",
            lambda function=function: function(torch.zeros(0), no_keys),
        )
    yield "with at least one key; got", lambda: numerical_rank(no_keys)
    yield "count of at least 0; got -1", lambda: sample_alternatives(A, T, -1)
    yield "count of at least 0; got -1", lambda: uniform_alternatives(A[0], space, -1)
    yield "starts of at least 1; got 0", lambda: far_alternatives(A, T, starts=0)
    yield "a weight for each of the space's 5 keys; got 4", lambda: far_alternative(A[0, :4], space)


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(("message", "call"), list(empty_calls()))
def test_what_has_no_answer_is_refused(message, call):
    with pytest.raises(InputError, match=message):
        call()


def half_calls():
    A, T = random_weights(0, 6, 2)
    space, values = simplex_space(T), ProjectedValues.of(T.half())
    for function in (sample_alternatives, logit_rank_study):
        yield function.__name__, lambda A, function=function: function(A, T, 2)
    for function in (far_alternatives, maximum_entropy_alternative):
        yield function.__name__, lambda A, function=function: function(A, values)
    for function in (attention_intervals, certify_row, minimum_norm_alternative):
        yield function.__name__, lambda A, function=function: function(A[0], values)
    for function in (analytic_centre, far_alternative):
        yield function.__name__, lambda A, function=function: function(A[0], space)
    yield "uniform", lambda A: uniform_alternatives(A[0], space, 2)
    yield "least_logit_rank", least_logit_rank
    yield "largest_step", lambda A: largest_step(A, A - 1)
    yield "total_variation", lambda A: total_variation(A, A)
    yield "total_variation of half", lambda half: total_variation(A, half)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("name", "call"), list(half_calls()))
def test_weights_in_half_precision_are_refused(name, call, dtype):
    A, _ = random_weights(0, 6, 2)
    with pytest.raises(
        InputError,
        match=rf"float32 or float64; got {str(dtype)[6:]}; compute them .*--dtype float32",
    ):
        call(A.to(dtype))
    call(A)
    call(A.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_values_in_half_precision_are_the_numbers_that_they_are(dtype):
    A, T = random_weights(0, 6, 2)
    T = T.to(dtype)
    for values in (T, ProjectedValues.of(T)):
        found, expected = (attention_intervals(A[0], one) for one in (values, T.double()))
        assert torch.equal(found.lo, expected.lo)
        assert torch.equal(found.hi, expected.hi)


@pytest.mark.usefixtures("unchecked_shapes")
def test_an_argument_that_is_not_as_annotated_is_named():
    generator, rows = torch.Generator(), torch.eye(3)
    for call, words in (
        (lambda: relative_tolerance([1], 2), "relative_tolerance needs n as int; got list"),
        (lambda: attention_logits("a", rows, 1.0), r"needs queries as Float\[Tensor, 'query d_k'\]; got str"),
        (lambda: attention_logits(rows, rows[:, :2], 1.0), r"needs keys .*float32, shape \(3, 2\); axes of one"),
        (lambda: chain_mixing(rows, 2, generator), "chain_mixing needs spaces as .*Sequence.*; got int"),
        (lambda: chain_mixing(rows, [[]], generator), "chain_mixing needs spaces as .*Sequence.*; got list"),
        (lambda: visible_softmax(rows.to_sparse(), None), "visible_softmax needs logits as Float"),
        (lambda: uniform_alternatives(rows, 1, 2), "needs weights_row as "),
    ):  # fmt: skip
        with pytest.raises(InputError, match=words):
            call()
    # An error that no argument explains stays what it is.
    with pytest.raises(ZeroDivisionError):
        explained(lambda: 1 / 0)()
    assert attention_logits(rows, rows, 1).equal(rows.double()), (
        "whole numbers are decimal ones, too"
    )


@pytest.mark.parametrize("measure", DEFAULTS, ids=lambda measure: measure.__name__)
def test_what_is_taken_where_nothing_is_given(measure):
    parameters = inspect.signature(measure).parameters
    given = {name: parameters[name].default for name in DEFAULTS[measure]}
    assert given == DEFAULTS[measure]
