"""Models offloaded, quantised or compiled: the plain model's numbers, or a reason."""

import polars as pl
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import identilens as idl
from helpers.zoo import build, ids
from identilens.errors import UnsupportedModelError
from identilens.models.offloading import tensor_of

TEXTS = [ids(24), ids(9)]


@pytest.fixture(scope="module", params=["llama", "bert", "gpt2"])
def folder(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    build(request.param).save_pretrained(place, max_shard_size="50KB")
    return place


@pytest.fixture(scope="module")
def plain(folder):
    return idl.load(folder, device="cpu")


def places(model):
    """Layers on disk, other parts in memory."""
    parts = ((name, part) for name, part in model.named_modules() if name)
    kept = {name: part for name, part in parts if not any(True for _ in part.children())}
    lists = {name for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    lists = [name for name in lists if not any(name.startswith(f"{one}.") for one in lists)]
    kept = {name: "cpu" for name in kept if not name.startswith(tuple(f"{one}." for one in lists))}
    return kept | dict.fromkeys(lists, "disk")


@pytest.fixture(scope="module")
def offloaded(folder, plain):
    return idl.load(folder, device_map=places(plain.model))


def test_layers_wait_on_disk_and_the_tables_are_those_of_the_whole_model(plain, offloaded):
    waiting = [name for name, one in offloaded.model.named_parameters() if one.is_meta]
    assert len(waiting) > len([*plain.model.parameters()]) / 2
    assert offloaded.digest == plain.digest
    tables = [idl.audit(lens, TEXTS, examples=1).table for lens in (plain, offloaded)]
    assert tables[0].equals(tables[1])
    assert waiting == [name for name, one in offloaded.model.named_parameters() if one.is_meta]


def test_what_needs_no_derivative_is_that_of_the_whole_model(plain, offloaded):
    for study in (
        lambda lens: idl.certify(
            lens, TEXTS[1:], layers=1, heads=0, queries=(4, -1), outcome="layer"
        ),
        lambda lens: idl.influence(lens, TEXTS[1:], outcome="states"),
        lambda lens: idl.rollout(lens, TEXTS[1:], queries=-1),
    ):
        assert study(plain).table.equals(study(offloaded).table)


def test_derivatives_of_offloaded_parameters_are_refused(offloaded):
    for study in (
        lambda: idl.mixing(offloaded, TEXTS[1:]),
        lambda: idl.certify(offloaded, TEXTS[1:], layers=1, heads=0, queries=-1, outcome="states"),
    ):
        with pytest.raises(UnsupportedModelError, match="derivative"):
            study()


def test_half_of_a_model_may_be_on_disk(folder, plain):
    parts = places(plain.model)
    [layers] = [name for name, place in parts.items() if place == "disk"]
    del parts[layers]
    half = idl.load(folder, device_map={**parts, f"{layers}.0": "cpu", f"{layers}.1": "disk"})
    audits = [idl.audit(lens, TEXTS, examples=0) for lens in (plain, half)]
    assert audits[0].table.equals(audits[1].table)


def test_a_tensor_is_read_from_where_it_is(plain, offloaded):
    for name, tensor in plain.model.state_dict().items():
        assert_close(tensor_of(offloaded.model, name), tensor, atol=0, rtol=0)


class Rounded(torch.Tensor):
    """A weight that is stored as integers with a scale for each row, as packages for quantisation make them."""

    @staticmethod
    def __new__(cls, integers, scale):
        return torch.Tensor._make_wrapper_subclass(cls, integers.shape, dtype=scale.dtype)

    def __init__(self, integers, scale):
        self.integers, self.scale = integers, scale

    def __tensor_flatten__(self):
        return ["integers", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, _context, _size, _stride):
        return Rounded(inner["integers"], inner["scale"])

    def dequantize(self):
        return self.integers * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.linear:
            return func(args[0], args[1].dequantize(), *args[2:])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0].integers, args[0].scale)
        raise NotImplementedError(f"a quantised weight has no {func}")


def test_quantised_weights_are_those_that_the_model_computes_with():
    model, rounded = build("llama"), build("llama")
    for one, other in zip(model.modules(), rounded.modules(), strict=True):
        if isinstance(one, torch.nn.Linear):
            scale = one.weight.detach().abs().amax(1, keepdim=True) / 127
            integers = (one.weight.detach() / scale).round().to(torch.int8)
            one.weight = torch.nn.Parameter(Rounded(integers, scale), requires_grad=False)
            other.weight.data = integers * scale
    found, expected = (
        idl.audit(idl.Lens(one), TEXTS, examples=1).table for one in (model, rounded)
    )
    assert found["rank"].equals(expected["rank"])
    for column in ("null_share", "pearson", "certain_mass"):
        apart = found.select((pl.col(column) - expected[column]).abs().max()).item()
        assert apart < 1e-4, column


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_inside(model):
    model.compile(backend="eager")
    return model


def compiled_by_layer(model):
    for layer in model.model.layers:
        layer.compile(backend="eager")
    return model


@pytest.mark.parametrize("made", [compiled, compiled_inside, compiled_by_layer])
@pytest.mark.filterwarnings("ignore")
def test_compiled_models_are_measured_as_they_were_written(made):
    model = made(build("llama"))
    before = model(torch.tensor([ids(9)])).logits
    found = idl.audit(idl.Lens(model), TEXTS, examples=1).table
    assert found.equals(idl.audit(idl.Lens(build("llama")), TEXTS, examples=1).table)
    assert torch.equal(model(torch.tensor([ids(9)])).logits, before)
