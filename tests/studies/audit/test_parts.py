"""How an audit is cut into parts, and which texts of a batch are measured at once."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from polars.testing import assert_frame_equal
from torch.utils._python_dispatch import TorchDispatchMode

import identilens as idl
from helpers.zoo import build, ids
from identilens.models import at_once, fused, layer_batch
from identilens.studies.audit import auditor, study


def test_saved_matrices_make_parts_smaller(monkeypatch):
    lens, texts = idl.Lens(build("bert")), [ids(n, n) for n in (9, 9, 12, 5)]
    heads = sum(site.heads for site in lens.sites(lens.read(texts)[0]))
    settings = study.AuditSettings(matrices=True)
    assert study.AuditStudy(lens, texts, settings).sizes() == [4]
    monkeypatch.setattr(study, "_MATRICES", heads * 8 * 2 * 9**2)
    assert study.AuditStudy(lens, texts, settings).sizes() == [2, 1, 1]
    assert study.AuditStudy(lens, texts, study.AuditSettings()).sizes() == [4]


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "t5"])
def test_texts_measured_at_once_give_what_each_gives_alone(family, monkeypatch):
    lens = idl.Lens(build(family).double())
    texts = [ids(n, seed) for seed, n in enumerate((40, 40, 9, 40, 9))]
    together = idl.audit(lens, texts, examples=0, certain_rows=0).table
    for module, limit in (
        (layer_batch, "WEIGHTS_AT_ONCE"),
        (auditor, "WEIGHTS_AT_ONCE"),
        (auditor, "VALUES_AT_ONCE"),
    ):
        monkeypatch.setattr(module, limit, 1)
        fewer = idl.audit(lens, texts, examples=0, certain_rows=0).table
        assert_frame_equal(
            together.drop("reconstruction_error"), fewer.drop("reconstruction_error"), rel_tol=1e-8
        )
    alone = idl.audit(lens, texts, examples=0, batch_size=1, certain_rows=0).table
    assert_frame_equal(
        together.drop("reconstruction_error"), alone.drop("reconstruction_error"), rel_tol=1e-8
    )


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    for name, modules in (
        ("texts_of_a_product", (fused, layer_batch)),
        ("room", (layer_batch, auditor)),
    ):
        on_a_gpu = partial(getattr(at_once, name), device=torch.device("cuda"))
        for module in modules:
            monkeypatch.setattr(
                module, name, lambda given, device, on_a_gpu=on_a_gpu: on_a_gpu(given)
            )


@pytest.mark.parametrize("family", ["bert", "llama", "mistral", "t5"])
def test_products_of_whole_batches_give_what_single_texts_give(family, as_on_a_gpu):
    lens = idl.Lens(build(family).double())
    texts = [ids(n, seed) for seed, n in enumerate((40, 40, 9, 40, 9))]
    together, alone = (
        idl.audit(lens, texts, examples=0, batch_size=size, certain_rows=0).table for size in (5, 1)
    )
    assert_frame_equal(
        together.drop("reconstruction_error"), alone.drop("reconstruction_error"), rel_tol=1e-8
    )


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_a_gpu_is_given_as_many_operations_for_many_texts_as_for_two(family, as_on_a_gpu):
    model = build(family)
    model.set_attn_implementation("sdpa")
    lens, counts = idl.Lens(model), []
    for count in (2, 6):
        taken = []
        idl.audit(lens, [ids(40)] * count, examples=0, progress=False)  # the proof runs once
        for layers in ((0,), (0, 1)):
            with _counted() as operations:
                # Rows that need a decomposition of their own depend on the text.
                idl.audit(lens, [ids(40)] * count, examples=0, layers=layers, progress=False)
            taken.append(len(operations))
        counts.append(taken[1] - taken[0])
    assert counts[0] == counts[1] > 0


@contextmanager
def _counted():
    operations = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            operations.append(str(function))
            return function(*args, **(kwargs or {}))

    with Count():
        yield operations


@pytest.mark.parametrize(("real", "accuracy"), [(False, 1e-9), (True, 2e-6)])
@pytest.mark.parametrize("stream", ["never", "always"])
def test_output_from_coordinates_gives_the_table_of_the_usual_way(
    real, accuracy, stream, request, monkeypatch
):
    lens = request.getfixturevalue("bundled") if real else idl.Lens(build("bert").double())
    texts = (
        ["The keys to the cabinet were on the table. " * 12, "A short text."]
        if real
        else [ids(40), ids(40, 1), ids(9)]
    )
    taken, spans = [], layer_batch.LayerBatch._spans.func

    def note(layer):
        taken.append(spans(layer))
        return taken[-1]

    monkeypatch.setattr(layer_batch.LayerBatch, "_spans", property(note))
    short = idl.audit(lens, texts, examples=0, stream=stream, certain_rows=0).table
    # Texts with fewer than twice d_v keys go the usual way.
    assert any(taken)
    assert not all(taken)
    monkeypatch.setattr(layer_batch.LayerBatch, "_spans", False)
    usual = idl.audit(lens, texts, examples=0, stream=stream, certain_rows=0).table
    assert short["reconstruction_error"].max() < accuracy
    assert_frame_equal(
        short.drop("reconstruction_error"),
        usual.drop("reconstruction_error"),
        abs_tol=accuracy,
        rel_tol=accuracy,
    )
