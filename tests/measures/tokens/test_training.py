"""Training ends where torch's own modules, autograd and optimiser end; first parameters and losses by hand."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from helpers.heads import normals, seeded
from identilens.errors import NumericalError
from identilens.measures.tokens.probes import Probe, mapped

LINEAR, MLP = None, 11
LAYERS, TOKENS, D_IN, D_OUT = 3, 150, 6, 5
RATES = (0.03, 0.01, 0.001)


@pytest.fixture
def data():
    """Hidden states of three layers, the first of which carries the inputs with noise."""
    generator = seeded()
    inputs = normals(generator, TOKENS, D_OUT)
    hidden = normals(generator, LAYERS, TOKENS, D_IN)
    hidden[0, :, :D_OUT] = inputs + 0.3 * hidden[0, :, :D_OUT]
    return hidden, inputs


def cells(hidden, inputs):
    """Three layers by three folds of different sizes: 7, 5 and 5 batches of 16, of which one is full."""
    order = torch.randperm(TOKENS, generator=seeded(3))
    parts = [(order[:100], order[100:140]), (order[20:92], order[:20]), (order[70:], order[:70])]
    return [
        (layer[train], inputs[train], layer[held], inputs[held])
        for train, held in parts
        for layer in hidden
    ]


def probe_of(kind, distance="l2", **course):
    course = {"learning_rate": RATES, "batch_size": 16, "seed": 7} | course
    return Probe(distance, hidden_units=kind, **course)


def plain_model(probe, d_in, d_out):
    generator = seeded(probe.seed)
    if probe.hidden_units is None:
        model = torch.nn.Sequential(torch.nn.Linear(d_in, d_out, bias=False))
    else:
        width = probe.hidden_units
        model = torch.nn.Sequential(
            torch.nn.Linear(d_in, width), torch.nn.GELU(), torch.nn.Linear(width, d_out)
        )
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.xavier_uniform_(layer.weight, generator=generator)
                if layer.bias is not None:
                    layer.bias.zero_()
    return model.double(), generator


def plain_loss(predicted, wanted, distance):
    if distance == "l2":
        return torch.nn.functional.mse_loss(predicted, wanted)
    return (1 - torch.cosine_similarity(predicted, wanted)).mean()


def plain_training(probe, rate, e, x, held_e, held_x):
    """One probe and one rate with torch's own modules, autograd and optimiser."""
    model, generator = plain_model(probe, e.shape[-1], x.shape[-1])
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    best, best_epoch, weights = float("inf"), 0, []
    for epoch in range(1, probe.max_epochs + 1):
        order = torch.randperm(len(e), generator=generator)
        for rows in order.split(probe.batch_size):
            optimiser.zero_grad()
            plain_loss(model(e[rows]), x[rows], probe.distance).backward()
            optimiser.step()
        with torch.no_grad():
            loss = float(plain_loss(model(held_e), held_x, probe.distance))
        if loss < best:
            best, best_epoch = loss, epoch
            weights = [p.detach().clone() for p in model.parameters()]
        elif epoch - best_epoch >= probe.patience:
            break
    return best, best_epoch, epoch, weights


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("kind", [LINEAR, MLP], ids=["linear", "mlp"])
def test_training_ends_where_torchs_own_modules_end(kind, distance, data):
    seen = []
    for cell in cells(*data):
        probe = probe_of(kind, distance, patience=4, max_epochs=40).fit(*cell)
        alone = [plain_training(probe, rate, *cell) for rate in RATES]
        assert [one.learning_rate for one in probe.outcomes_] == list(RATES)
        for one, (best, best_epoch, epochs, _) in zip(probe.outcomes_, alone, strict=True):
            assert one.validation_loss == pytest.approx(best, rel=1e-8)
            assert (one.best_epoch, one.epochs) == (best_epoch, epochs)
        winner = min(range(len(alone)), key=lambda rate: alone[rate][0])
        assert probe.outcome_ is probe.outcomes_[winner]
        for found, expected in zip(probe.outcome_.parameters, alone[winner][3], strict=True):
            assert_close(found, expected.t(), rtol=1e-7, atol=1e-9)
        seen += probe.outcomes_
    # The comparison means something: members stopped at different epochs, some at the limit.
    assert len({one.epochs for one in seen}) > 3
    assert {one.converged for one in seen} == {True, False}


def test_float32_states_train_in_float32(data):
    for cell in cells(*data):
        exact = probe_of(MLP, "cosine", max_epochs=5).fit(*cell)
        single = probe_of(MLP, "cosine", max_epochs=5).fit(*(one.float() for one in cell))
        assert single.outcome_.parameters[0].dtype == torch.float32
        for one, other in zip(single.outcomes_, exact.outcomes_, strict=True):
            assert one.validation_loss == pytest.approx(other.validation_loss, rel=1e-3)


def test_stops_after_patience_and_keeps_the_best(data):
    generator = seeded(5)
    noise = normals(generator, TOKENS, D_OUT)
    _, _, held, wanted = cell = cells(data[0], noise)[0]
    outcome = probe_of(MLP, learning_rate=0.03, patience=6, max_epochs=200).fit(*cell).outcome_
    assert outcome.converged
    assert outcome.epochs == outcome.best_epoch + 6
    predicted = mapped(outcome.parameters, held)
    assert plain_loss(predicted, wanted, "l2") == pytest.approx(outcome.validation_loss)


def test_a_diverging_rate_leaves_the_others_alone(data):
    cell = cells(*data)[0]
    probe = probe_of(LINEAR, learning_rate=(0.01, 1e200), max_epochs=5).fit(*cell)
    good, bad = probe.outcomes_
    assert probe.outcome_ is good
    assert bad.validation_loss == float("inf")
    assert [(one.epochs, one.converged) for one in (good, bad)] == [(5, False), (1, False)]
    alone = replace(probe, learning_rate=0.01).fit(*cell).outcome_
    assert good.validation_loss == alone.validation_loss
    with pytest.raises(NumericalError, match="smaller"):
        replace(probe, learning_rate=1e200).fit(*cell)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [LINEAR, MLP], ids=["linear", "mlp"])
def test_the_gpu_ends_where_the_cpu_ends(kind, data):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    cell = cells(*data)[0]
    here, there = (
        probe_of(kind, "cosine", patience=4, max_epochs=25).fit(*values).outcome_
        for values in (cell, [one.cuda() for one in cell])
    )
    assert there.parameters[0].is_cuda
    assert (there.learning_rate, there.epochs) == (here.learning_rate, here.epochs)
    for one, other in zip(there.parameters, here.parameters, strict=True):
        assert_close(one.cpu(), other, rtol=1e-6, atol=1e-6)
