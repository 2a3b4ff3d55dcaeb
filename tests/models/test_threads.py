"""Threads, interrupts and global settings of torch neither change a number nor leave a model changed."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread, get_ident

import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import UnsupportedModelError
from identilens.models import Lens

TEXTS = [ids(12), ids(9, 1)]
STUDIES = {
    "audit": lambda lens: idl.audit(lens, TEXTS, certain_rows=1).table,
    "alternatives": lambda lens: (
        idl.alternatives(lens, TEXTS[:1], layers=[1], heads=[0], realisable=True).table
    ),
    "logit_ranks": lambda lens: (
        idl.lab.logit_ranks(lens, [ids(20)], layers=[0], heads=[0], count=3).table
    ),
    "mixing": lambda lens: idl.mixing(lens, TEXTS[1:]).table,
    "structure": lambda lens: idl.structure(lens, TEXTS, length=6).table,
    "certify": lambda lens: idl.certify(lens, TEXTS[:1], queries=[3], layers=[0], heads=[0]).table,
}


def same(one, other):
    """Equal but for the rounding that differs with where tensors lie in memory."""
    assert_frame_equal(one, other, abs_tol=1e-6, rel_tol=1e-5)
    return True


def state(model):
    """All that capture could leave behind: modes, implementation, hooks (those of transformers stay) and parameters."""
    hooks = [
        hook
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        if not hook.__module__.startswith("transformers.")
    ]
    return (
        [one.training for one in model.modules()],
        model.config._attn_implementation,
        hooks,
        Lens(model).digest,
    )


@contextmanager
def switching_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def test_audits_and_plain_calls_of_one_model_at_once():
    model = build("llama")
    model.lm_head.train()
    lens, before = Lens(model), state(model)
    batch = torch.tensor([ids(10)])
    expected, plain = STUDIES["audit"](Lens(build("llama"))), torch.no_grad()(model)(batch)[0]

    def work(number):
        if number % 3 == 0:
            return torch.allclose(torch.no_grad()(model)(batch)[0], plain, atol=1e-6)
        return same(STUDIES["audit"](lens if number % 3 == 1 else Lens(model)), expected)

    with switching_often(), ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(12)))
    assert state(model) == before


def test_a_model_in_training_stays_in_evaluation_mode_until_the_last_capture_has_ended():
    model = build("bert").train()
    model.pooler.eval()
    lens, before, modes = Lens(model), state(model), []

    def first(call):
        if call.index == 0:
            other = Thread(
                target=lambda: lens.run(lens.read([ids(5)]), lambda call: call.attend()[0])
            )
            other.start()
            other.join()
            modes.append(model.encoder.training)
        return call.attend()[0]

    lens.run(lens.read([ids(5)]), first, task_head=True)
    assert modes == [False]
    assert state(model) == before


@pytest.mark.parametrize("study", ["audit", "alternatives", "mixing"])
def test_a_plain_call_at_any_point_of_a_study_is_the_model_s_own(study):
    """Each time that the study runs the model, another thread runs it too, and neither sees the other."""
    model, other = build("bert"), torch.tensor([ids(7, 5)])
    expected = STUDIES[study](Lens(build("bert")))
    plain = torch.no_grad()(model)(other)[0]
    home, found = get_ident(), []

    def meanwhile(*_):
        if get_ident() == home:
            thread = Thread(target=lambda: found.append(torch.no_grad()(model)(other)[0]))
            thread.start()
            thread.join()

    model.encoder.layer[0].attention.self.query.register_forward_hook(meanwhile)
    model.encoder.layer[1].attention.output.dropout.register_forward_hook(meanwhile)
    # A recorder of derivatives that other threads disturb is not used; what it would have given is worked out directly.
    table = STUDIES[study](Lens(model))
    assert found
    assert all(torch.allclose(one, plain, atol=1e-6) for one in found)
    assert same(table, expected)


@pytest.mark.parametrize("error", [KeyboardInterrupt, AttributeError])
@pytest.mark.parametrize("call", [0, 5])
@pytest.mark.parametrize("study", ["audit", "alternatives", "mixing"])
def test_after_an_interrupt_the_model_is_as_before(study, error, call):
    model = build("bert").train()
    model.pooler.eval()
    before, calls = state(model), []

    def stop(*_):
        calls.append(0)
        if len(calls) > call:
            raise error

    def work():
        for _ in range(9):
            STUDIES[study](Lens(model))

    last = model.encoder.layer[1].attention.output.dropout
    with last.register_forward_hook(stop), pytest.raises((error, UnsupportedModelError)):
        work()
    assert state(model) == before
    assert same(STUDIES["audit"](Lens(model)), STUDIES["audit"](Lens(build("bert"))))
