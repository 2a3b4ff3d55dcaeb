"""Nothing of a text outlives its use: neither inputs nor weights nor states, also after an error."""

import gc

import pytest
import torch
import transformers as hf

import identilens as idl
from helpers.zoo import _BERT, _random, build, ids
from identilens.errors import UnsupportedModelError
from identilens.models import Lens
from identilens.models.interface import AttentionCall
from identilens.models.linearise import HiddenMap
from identilens.models.rollouts import final_rollouts, text_rollouts

N = 37
"""A length that no parameter of the models below has."""
USES = {
    "capture": lambda lens: list(
        lens.capture([ids(N), ids(N, 1)], weights=True, hidden_states=True)
    ),
    "proof": lambda lens: lens.prove(lens.read([ids(N), ids(N - 8)])),
    "substitution": lambda lens: lens.substitute({(0, 0): torch.full((N, N), 1 / N)}, [ids(N)]),
    "audit": lambda lens: idl.audit(lens, [ids(N)], examples=0).summary(),
    "rollouts": lambda lens: text_rollouts(lens, lens.read([ids(N)])[0]),
    "all rollouts": lambda lens: final_rollouts(lens, lens.read([ids(N)])[0]),
    "hidden map": lambda lens: HiddenMap(lens, lens.read([ids(N)])[0]).run,
    "sites": lambda lens: lens.sites(lens.read([ids(N)])[0]),
}


def held():
    """Shapes of tensors that have a position for each token."""
    gc.collect()
    return [
        tuple(one.shape) for one in gc.get_objects() if type(one) is torch.Tensor and N in one.shape
    ]


@pytest.mark.parametrize(
    ("family", "use"), [*(("bert", use) for use in USES), ("followed", "proof")]
)
def test_tensors_of_a_text_are_let_go(family, use):
    lens = Lens(build("bert") if family == "bert" else followed())
    before = held()
    USES[use](lens)
    assert held() == before


def followed():
    torch.manual_seed(0)
    return _random(hf.MPNetModel(hf.MPNetConfig(**_BERT)))


def test_tensors_are_let_go_after_a_check_that_failed(monkeypatch):
    lens = Lens(build("bert"))
    before = held()
    monkeypatch.setattr(AttentionCall, "run", lambda call: call.attend()[0] * 2)
    with pytest.raises(UnsupportedModelError):
        list(lens.capture([ids(N)]))
    assert held() == before
