"""A lens follows its model: what it says of the weights is said of those that are there now."""

import gc

import pytest
import torch
import transformers as hf

import identilens as idl
from helpers.zoo import _BERT, _random, build, ids
from identilens.errors import InputError, UnsupportedModelError
from identilens.models import Lens
from identilens.models.interface import AttentionCall
from identilens.models.linearise import HiddenMap
from identilens.models.rollouts import final_rollouts, self_attention

CHANGES = {
    "in place": lambda weight: weight.data.add_(1),
    "without gradient": lambda weight: torch.no_grad()(lambda: weight.mul_(2))(),
    "through numpy": lambda weight: weight.detach().numpy().__imul__(2),
    "rows in another order": lambda weight: weight.data.copy_(weight.data.flip(0)),
    "other storage": lambda weight: setattr(weight, "data", weight.data + 1),
}


@pytest.mark.parametrize("change", sorted(CHANGES))
def test_the_digest_is_that_of_the_weights_as_they_are(change):
    lens = Lens(build("bert"))
    before, weight = lens.digest, lens.model.encoder.layer[0].attention.self.query.weight
    kept = weight.detach().clone()
    assert lens.digest == before
    CHANGES[change](weight)
    assert lens.digest != before
    assert lens.facts["digest"] == lens.digest
    with torch.no_grad():
        weight.copy_(kept)
    assert lens.digest == before


def adapted(**settings):
    peft = pytest.importorskip("peft", reason="pip install peft for the tests of adapters")
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["o_proj"], r=4, init_lora_weights=False, **settings)
    return peft.get_peft_model(build("llama"), config)


def test_an_adapter_switched_off_changes_the_digest():
    wrapped = adapted()
    lens = Lens(wrapped.get_base_model())
    before = lens.digest
    with wrapped.disable_adapter():
        assert lens.digest != before
    assert lens.digest == before


def test_an_adapter_of_another_scale_changes_the_digest():
    models = [adapted(lora_alpha=scale).get_base_model() for scale in (8, 16, 8)]
    digests = [Lens(model).digest for model in models]
    assert digests[0] == digests[2] != digests[1]


def test_a_wrapper_of_an_adapter_is_refused():
    with pytest.raises(InputError, match="merge_and_unload"):
        Lens(adapted())


@pytest.mark.parametrize("change", ["step", "double"])
def test_an_audit_after_training_is_that_of_a_fresh_lens(change):
    model = build("bert")
    lens = Lens(model)
    idl.audit(lens, [ids(20)])
    if change == "double":
        model.double()
    else:
        model(torch.tensor([ids(9)])).last_hidden_state.square().sum().backward()
        torch.optim.SGD(model.parameters(), 1.0).step()
    again, fresh = (idl.audit(one, [ids(20)]).table for one in (lens, Lens(model)))
    assert again.equals(fresh)


@pytest.mark.parametrize("given", [False, True])
def test_calls_of_the_body_or_of_a_model_go_to_a_handler_inside_the_context(given):
    lens, seen = Lens(build("bert")), []
    items = lens.read([ids(6), ids(4)])
    plain = lens.plain(items, lens.body).last_hidden_state

    def halved(call):
        seen.append(call.index)
        return call.attend()[0] / 2

    with lens.capturing(halved, items, *([lens.body] if given else [])):
        changed = lens.plain(items, lens.body).last_hidden_state
    assert seen == list(range(len(lens.sites(items[0]))))
    assert not torch.allclose(changed, plain)
    assert torch.equal(lens.plain(items, lens.body).last_hidden_state, plain)


N = 37
"""A length that no parameter of the models below has."""
USES = {
    "capture": lambda lens: list(
        lens.capture([ids(N), ids(N, 1)], weights=True, hidden_states=True)
    ),
    "proof": lambda lens: lens.prove(lens.read([ids(N), ids(N - 8)])),
    "substitution": lambda lens: lens.substitute({(0, 0): torch.full((N, N), 1 / N)}, [ids(N)]),
    "audit": lambda lens: idl.audit(lens, [ids(N)], examples=0).summary(),
    "rollouts": lambda lens: self_attention(lens, lens.read([ids(N)])[0]),
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


def test_what_comes_after_a_layer_does_not_run_for_it():
    lens, ran = Lens(build("bert")), []
    item = lens.read([ids(N)])[0]
    lens.prove_once([item])
    with lens.body.encoder.layer[1].register_forward_hook(lambda *_: ran.append(1)):
        lens.layer(item, 0)
        assert not ran
        lens.layer(item, 1)
    assert not ran
