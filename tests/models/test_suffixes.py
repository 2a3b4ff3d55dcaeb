"""Derivatives from the row on: those of the whole text, in a few passes, in half precision too."""

import copy

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import identilens as idl
from helpers.heads import normals, seeded
from helpers.zoo import build, ids
from identilens.models import Lens
from identilens.models.explaining import Exact
from identilens.models.outcome import Answer

HEADS = [(0, 1), (1, 3)]
N = 12


def derived(lens, outcome, query, *, whole=False):
    """Return J, and whether only the positions from the row on were computed."""
    answer = Answer(lens, lens.read([ids(N)])[0], outcome, (5, 9, N - 1))
    if whole:
        answer._text.held.clear()
    return answer.derivative(HEADS, query, {})[0], bool(answer._text.held)


@pytest.mark.parametrize("query", [7, N - 1])
@pytest.mark.parametrize("outcome", ["prediction", "states"])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "mistral"])
def test_the_derivative_is_that_of_the_whole_text_and_of_differences(family, outcome, query):
    lens = Lens(build(family).double())
    item, later = lens.read([ids(N)])[0], [at for at in (5, 9, N - 1) if at >= query]
    change = normals(seeded(), 2, 8)

    def moved(step):
        def add(call):
            output = call.mixed().clone()
            for move, (number, head) in zip(change, HEADS, strict=True):
                output[0, query, head] += step * move * (call.index == number)
            return output

        run = lens.run([item], add, whole=True, output_hidden_states=True)
        return (run.logits if outcome == "prediction" else run.hidden_states[-1])[0, later]

    with Exact():
        found, held = derived(lens, outcome, query)
        whole, _ = derived(lens, outcome, query, whole=True)
        difference = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert held
    assert (whole[:, -len(later) :] - found).norm() <= 1e-9 * found.norm()
    assert not whole[:, : -len(later)].any()
    expected = torch.einsum("t,tpe->pe", change.flatten(), found)
    assert (difference - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_a_row_of_a_long_text_costs_a_few_passes_in_every_precision(dtype):
    text, model = ids(128), build("llama").to(getattr(torch, dtype))
    lens, single, read = Lens(model), Lens(copy.deepcopy(model).float()), []
    with FlopCounterMode(display=False) as once:
        lens.run([text], whole=True)
    with model.model.embed_tokens.register_forward_pre_hook(
        lambda _, args: read.append(args[0].shape[1] == 128)
    ):
        settings = {"layers": 1, "heads": 2, "queries": -1, "outcome": "prediction"}
        found = idl.certify(lens, [text], **settings)
    assert sum(read) <= 8
    answers = [Answer(one, one.read([text])[0], "prediction", (127,)) for one in (lens, single)]
    with FlopCounterMode(display=False) as every:
        roots = [one.linearised([(1, 2)], 127)[0][0] for one in answers]
    assert every.get_total_flops() <= 2 * 8 * once.get_total_flops()
    metric, exact = (root @ root.mT for root in roots)
    assert (metric - exact).norm() <= 0.01 * exact.norm()
    assert found.rows["cast"].item() == pytest.approx(answers[0].cast)


def test_what_reads_later_positions_runs_whole():
    lens = Lens(build("bert"))
    answer = Answer(lens, lens.read([ids(N)])[0], "states")
    assert not answer._text.held
    assert answer.derivative([(0, 0)], 4, {})[0].shape == (8, N, 32)
