"""Work that is done on the processor and on a second device, and how the numbers differ."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal

import identilens as idl
from helpers.heads import seeded
from helpers.zoo import build, classifier, example, ids
from identilens.explorer.work import measured
from identilens.linalg.memory import WITHOUT_DOUBLES
from identilens.measures import attention
from identilens.models.substitution import Rows
from identilens.runs.result import Result

FAMILIES = ("bert", "llama", "gpt_oss", "t5", "gemma2", "jamba", "vit")
"""An encoder, a grouped decoder, sinks, cross attention, capped logits, layers without attention, pictures."""

PROMPT = {"prompt": "The ferry left. Nobody", "answer": " saw it"}
TEXT = [ids(12)]
HEAD = {"layers": (1,), "heads": (1,)}
PRECISION = [torch.float64]
"""That of the models, the last one."""
Numbers = Mapping[str, pl.DataFrame | torch.Tensor | float]


def _lens(family, device):
    return idl.Lens(build(family).to(PRECISION[-1]).to(device))


def _classifier(device):
    return idl.Lens(classifier().model.to(PRECISION[-1]).to(device))


def _in_half(device):
    model = build("llama").to(device, torch.bfloat16)
    model.set_attn_implementation("eager")  # fused attention rounds otherwise on each device
    return idl.audit(idl.Lens(model), TEXT, certain_rows=0, effects="none")


def _inverted(device):
    lens = _lens("llama", device)
    states = next(lens.capture(TEXT, hidden_states=True)).hidden_states
    assert states is not None
    found = idl.invert(lens, next(iter(states.values()))[1], layer=1)
    return {"ids": torch.tensor(found.ids), "distances": torch.tensor(found.distances)}


def _explored(device):
    text = measured(_lens("llama", device), TEXT[0], lambda: None, lambda told: None)
    head = text.head(1, 1, "decoder")
    own = text.answer.change(1, {head.address: Rows([1], 0 * head.attention[:1])})
    return {"attention": head.attention, "effective": head.effective, "change": own}


WORK: dict[str, Callable[[Any], Any]] = {
    **{
        f"audit of {family}": lambda device, family=family: idl.audit(
            idl.Lens(build(family).to(device)), example(family), certain_rows=0, effects="none"
        )
        for family in FAMILIES
    },
    "audit": lambda device: idl.audit(
        _lens("llama", device), TEXT, layers=(1,), certain_rows=1, matrices=True
    ),
    "audit in bfloat16": _in_half,
    "certify": lambda device: idl.certify(
        _lens("bert", device), TEXT, **HEAD, queries=(3,), tolerance=("0", "1%")
    ),
    "certify a layer": lambda device: idl.certify(
        _lens("llama", device), TEXT, **HEAD, queries=("last",), outcome="layer"
    ),
    "certify a prediction": lambda device: idl.certify(
        _lens("llama", device), TEXT, **HEAD, queries=("last",), outcome="prediction",
        tolerance=("1%",),
    ),
    "certify states": lambda device: idl.certify(
        _lens("bert", device), TEXT, **HEAD, queries=(3,), outcome="states", tolerance=("1%",)
    ),
    "alternatives": lambda device: idl.alternatives(
        _lens("bert", device), TEXT, **HEAD, realisable=True, starts=2
    ),
    "alternatives together": lambda device: idl.alternatives(
        _lens("llama", device), TEXT, layers=(1,), outcome="prediction", tolerance=("0.001nats",),
        together=True,
    ),
    "influence": lambda device: idl.influence(_lens("llama", device), TEXT),
    "influence on states": lambda device: idl.influence(
        _lens("bert", device), TEXT, outcome="states"
    ),
    "influence on a class": lambda device: idl.influence(_classifier(device), TEXT),
    "faithfulness": lambda device: idl.faithfulness(
        _lens("bert", device), TEXT, **HEAD
    ),
    "faithfulness of a decision": lambda device: idl.faithfulness(
        _classifier(device), TEXT, decision="", draws=2
    ),
    "mixing": lambda device: idl.mixing(_lens("bert", device), TEXT),
    "exact mixing": lambda device: idl.mixing(_lens("bert", device), TEXT, method="exact"),
    "patterns": lambda device: idl.patterns(_lens("llama", device), TEXT, rows=1, least_score=0.01),
    "rollout": lambda device: idl.rollout(
        _lens("bert", device), TEXT, queries=(3,), targets=(1,), witnesses=True
    ),
    "inversion": lambda device: idl.inversion(_lens("llama", device), TEXT),
    "inversion of a cache": lambda device: idl.inversion(
        _lens("llama", device), TEXT, stored="cache"
    ),
    "inversion of an encoder": lambda device: idl.inversion(
        _lens("bert", device), TEXT, substitutes=2
    ),
    "invert": _inverted,
    "structure": lambda device: idl.structure(
        _lens("bert", device), [ids(9, one) for one in range(4)], length=9, pool=4, clusters=2
    ),
    "tokens": lambda device: idl.token_identifiability(
        _lens("bert", device), [ids(12, one) for one in range(8)], folds=2,
        probes=("naive", "linear"), distances=("cosine",), max_epochs=2,
    ),
    "certify a source": lambda device: idl.certify(
        _lens("llama", device), TEXT, layers=(1,), queries="last", source=("5",)
    ),
    "answer": lambda device: idl.answer(
        idl.load("bundled-decoder", device=device), PROMPT, bounded=1
    ),
    "generated answer": lambda device: idl.answer(
        idl.load("bundled-decoder", device=device), {"prompt": "The ferry left"}, bounded=0,
        max_new_tokens=2,
    ),
    "explorer": _explored,
}  # fmt: skip
"""Every study on small models, by name."""


def _measured(device):
    """Every measure of rows that takes tensors, given tensors of a device."""
    drawn = seeded()
    T = torch.randn(8, 4, generator=drawn).double().to(device)
    A = torch.randn(8, 8, generator=drawn).double().softmax(-1).to(device)
    causal = torch.ones(8, 8, dtype=torch.bool).tril().to(device)
    seen = (A * causal) / (A * causal).sum(-1, keepdim=True)
    return {
        "intervals": lambda: attention.attention_intervals(A[3], T).lo,
        "within a tolerance": lambda: attention.attention_intervals(A[3], T, tolerance=0.01).hi,
        "certain mass": lambda: attention.certain_mass(seen, T, visible=causal),
        "mass within a tolerance": lambda: attention.certain_mass(A, T, tolerance=0.01),
        "functional": lambda: attention.functional_interval(A[3], T, torch.eye(8).to(device)).lo,
        "far": lambda: attention.far_alternatives(A, T, generator=seeded()),
        "effective": lambda: attention.effective_attention(T, weights=A).effective,
        "logit rank": lambda: attention.least_logit_rank(A),
        "realisable": lambda: (
            attention.realisable_alternative(
                attention.softmax_map(A[:, :4], A[:, 4:], T[:, :2]),
                generator=seeded(),
            ).weights
        ),
        "uniform": lambda: attention.sample_alternatives(
            A, T, 4, method="uniform", generator=seeded()
        ),
        "sampled": lambda: attention.sample_alternatives(A, T, 4, generator=seeded()),
    }


MEASURES = tuple(_measured("cpu"))


def _numbers(found):
    if isinstance(found, Result):
        return {name: getattr(found, name) for name in found.schema}
    if isinstance(found, torch.Tensor):
        return {"values": found}
    return found


def differences(name, device=None, doubles=True):
    """Return what differs between the processor and another device in what a study, or a measure, gives.

    Without a device it is one made for tests, with float64 or without, as Apple's, which the process keeps ever after:
    give it a process of its own.
    """
    if device is not None:
        return _differences(name, device)
    from helpers.elsewhere import KIND, elsewhere

    with elsewhere(doubles=doubles) as made:
        if doubles:
            return _differences(name, made)
        WITHOUT_DOUBLES.add(KIND)
        PRECISION.append(torch.float32)
        try:
            with pytest.warns(UserWarning, match="no float64"):
                return _differences(name, made)
        finally:
            WITHOUT_DOUBLES.remove(KIND)
            PRECISION.pop()


def _differences(name, device):
    work = WORK.get(name) or (lambda place: _measured(place)[name]())
    here, there = _numbers(work("cpu")), _numbers(work(device))
    return [found for key in here if (found := _differing(key, here[key], there[key]))]


def _differing(name, here, there):
    if isinstance(here, pl.DataFrame):
        check = partial(assert_frame_equal, abs_tol=1e-5, rel_tol=1e-4)
    else:
        check = partial(torch.testing.assert_close, atol=1e-5, rtol=1e-4)
        there = torch.as_tensor(there).cpu() if isinstance(here, torch.Tensor) else there
    try:
        check(here, there)
    except AssertionError as error:
        return f"{name}: {error}"
    return None
