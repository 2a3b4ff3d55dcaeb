from dataclasses import replace

import pytest
import torch

from identilens.errors import InputError, NumericalError
from identilens.measures.tokens.networks import LinearNetwork, MlpNetwork
from identilens.measures.tokens.training import Job, Progress, Schedule, train_probes

LINEAR, MLP = LinearNetwork(), MlpNetwork(11)
LAYERS, TOKENS, D_IN, D_OUT = 3, 150, 6, 5


@pytest.fixture
def data():
    """Hidden states of three layers, the first of which carries the inputs with noise."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(1, TOKENS, D_OUT, generator=generator, dtype=torch.float64)
    hidden = torch.randn(LAYERS, TOKENS, D_IN, generator=generator, dtype=torch.float64)
    hidden[0, :, :D_OUT] = inputs[0] + 0.3 * hidden[0, :, :D_OUT]
    return hidden, inputs


def cells(rates=(0.03, 0.01, 0.001)):
    """Three layers by three folds of different sizes: 7, 5 and 5 batches of 16, of which one is full."""
    order = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(3))
    parts = [(order[:100], order[100:140]), (order[20:92], order[:20]), (order[70:], order[:70])]
    return [Job(layer, 0, *part, rates=rates, seed=7) for part in parts for layer in range(LAYERS)]


def plain_model(network, d_in, d_out, seed):
    generator = torch.Generator().manual_seed(seed)
    if isinstance(network, LinearNetwork):
        model = torch.nn.Sequential(torch.nn.Linear(d_in, d_out, bias=False))
    else:
        width = network.hidden_units
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


def plain_training(job, rate, hidden, targets, network, schedule):
    """One probe and one rate with torch's own modules, autograd and optimiser."""
    model, generator = plain_model(network, hidden.shape[-1], targets.shape[-1], job.seed)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    e, x = hidden[job.layer], targets[job.target]
    best, best_epoch, weights = float("inf"), 0, []
    for epoch in range(1, schedule.max_epochs + 1):
        order = job.train[torch.randperm(len(job.train), generator=generator)]
        for rows in order.split(schedule.batch_size):
            optimiser.zero_grad()
            plain_loss(model(e[rows]), x[rows + job.offset], schedule.distance).backward()
            optimiser.step()
        with torch.no_grad():
            wanted = x[job.validation + job.offset]
            loss = float(plain_loss(model(e[job.validation]), wanted, schedule.distance))
        if loss < best:
            best, best_epoch = loss, epoch
            weights = [p.detach().clone() for p in model.parameters()]
        elif epoch - best_epoch >= schedule.patience:
            break
    return best, best_epoch, epoch, weights


def assert_same(one, other, rtol=1e-7):
    assert one.learning_rate == other.learning_rate
    assert one.losses == pytest.approx(other.losses, rel=rtol)
    assert (one.best_epochs, one.epochs, one.converged) == (
        other.best_epochs,
        other.epochs,
        other.converged,
    )
    for p, q in zip(one.parameters, other.parameters, strict=True):
        torch.testing.assert_close(p, q, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("distance", ["cosine", "l2"])
@pytest.mark.parametrize("network", [LINEAR, MLP], ids=["linear", "mlp"])
def test_training_ends_where_torchs_own_modules_end(network, distance, data):
    schedule = Schedule(distance, batch_size=16, patience=4, max_epochs=40)
    jobs = cells()
    outcomes = train_probes(jobs, *data, network, schedule)
    for job, outcome in zip(jobs, outcomes, strict=True):
        alone = [plain_training(job, rate, *data, network, schedule) for rate in job.rates]
        assert outcome.losses == pytest.approx([best for best, *_ in alone], rel=1e-8)
        assert list(outcome.best_epochs) == [best_epoch for _, best_epoch, *_ in alone]
        assert list(outcome.epochs) == [epochs for *_, epochs, _ in alone]
        winner = min(range(len(alone)), key=lambda rate: alone[rate][0])
        assert outcome.learning_rate == job.rates[winner]
        assert outcome.validation_loss == pytest.approx(alone[winner][0], rel=1e-8)
        for found, expected in zip(outcome.parameters, alone[winner][3], strict=True):
            torch.testing.assert_close(found, expected.t(), rtol=1e-7, atol=1e-9)
    # The comparison means something: members stopped at different epochs, some at the limit.
    assert len({epochs for outcome in outcomes for epochs in outcome.epochs}) > 3
    assert {done for outcome in outcomes for done in outcome.converged} == {True, False}


def test_float32_states_train_in_float32(data):
    hidden, inputs = (values.float() for values in data)
    schedule = Schedule("cosine", batch_size=16, max_epochs=5)
    exact = train_probes(cells(), *data, MLP, schedule)
    for outcome, reference in zip(
        train_probes(cells(), hidden, inputs, MLP, schedule), exact, strict=True
    ):
        assert outcome.losses == pytest.approx(reference.losses, rel=1e-3)
        assert outcome.parameters[0].dtype == torch.float32


def test_jobs_may_differ_in_rates_seed_and_repeat(data):
    schedule = Schedule("l2", batch_size=16, max_epochs=6)
    one, *_ = cells()
    jobs = [one, replace(one, rates=(0.01,), seed=1), one, replace(one, rates=(0.02, 0.001))]
    outcomes = train_probes(jobs, *data, LINEAR, schedule)
    assert [len(outcome.losses) for outcome in outcomes] == [3, 1, 3, 2]
    assert_same(outcomes[0], outcomes[2])
    for job, outcome in zip(jobs, outcomes, strict=True):
        assert_same(outcome, train_probes([job], *data, LINEAR, schedule)[0])


@pytest.mark.parametrize("offset", [-2, 1])
def test_offsets_and_targets_pair_other_rows(offset, data):
    hidden, inputs = data
    rows = torch.arange(2, TOKENS - 2)
    job = Job(1, 1, rows[:100], rows[100:], rates=(0.01,), offset=offset)
    schedule = Schedule("l2", batch_size=16, max_epochs=4)
    targets = torch.cat([torch.zeros_like(inputs), inputs])
    shifted = torch.roll(inputs, -offset, dims=1)
    moved = train_probes([job, replace(job, train=rows[:60])], hidden, targets, LINEAR, schedule)[0]
    plain = train_probes([replace(job, target=0, offset=0)], hidden, shifted, LINEAR, schedule)[0]
    assert_same(moved, plain)


def test_stops_after_patience_and_keeps_the_best(data):
    hidden, inputs = data
    noise = torch.randn(
        inputs.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    job = replace(cells()[0], rates=(0.03,))
    outcome = train_probes(
        [job], hidden, noise, MLP, Schedule("l2", batch_size=16, patience=6, max_epochs=200)
    )[0]
    assert outcome.converged == (True,)
    assert outcome.epochs[0] == outcome.best_epochs[0] + 6
    predicted = MLP.apply(outcome.parameters, hidden[0][job.validation])
    assert plain_loss(predicted, noise[0][job.validation], "l2") == pytest.approx(
        outcome.validation_loss
    )


def test_a_diverging_rate_leaves_the_others_alone(data):
    hidden, inputs = data
    job = replace(cells()[0], rates=(0.01, 1e200))
    schedule = Schedule("l2", batch_size=16, max_epochs=5)
    outcome = train_probes([job], hidden, inputs, LINEAR, schedule)[0]
    assert outcome.learning_rate == 0.01
    assert outcome.losses[1] == float("inf")
    assert (outcome.epochs, outcome.converged) == ((5, 1), (False, False))
    assert (
        outcome.losses[0]
        == train_probes([replace(job, rates=(0.01,))], hidden, inputs, LINEAR, schedule)[0].losses[
            0
        ]
    )
    with pytest.raises(
        NumericalError, match=r"got none for layer 0; scale the hidden states or use smaller rates"
    ):
        train_probes([replace(job, rates=(1e200,))], hidden, inputs, LINEAR, schedule)


def test_progress_counts_jobs_and_epochs(data):
    seen: list[Progress] = []
    schedule = Schedule("cosine", batch_size=16, patience=2, max_epochs=60)
    outcomes = train_probes(cells(), *data, LINEAR, schedule, seen.append)
    expected = []
    for done, outcome in enumerate(outcomes):
        expected += [
            Progress(done, 9, epoch) for epochs in outcome.epochs for epoch in range(1, epochs + 1)
        ]
        best = outcome.losses.index(outcome.validation_loss)
        expected.append(Progress(done + 1, 9, outcome.epochs[best]))
    assert seen == expected


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_cannot_be_trained(data):
    hidden, inputs = data
    job, schedule = cells()[0], Schedule("l2")
    broken = hidden.clone()
    broken[1, 4, 2] = torch.nan
    with pytest.raises(
        InputError, match="finite hidden states, got 1 entries that are NaN or infinite"
    ):
        train_probes([job], broken, inputs, LINEAR, schedule)
    with pytest.raises(InputError, match="finite inputs, got"):
        train_probes([job], hidden, inputs * torch.inf, LINEAR, schedule)
    with pytest.raises(
        InputError, match="got 150 hidden states and 149 inputs; take both from the same texts"
    ):
        train_probes([job], hidden, inputs[:, 1:], LINEAR, schedule)
    with pytest.raises(InputError, match="rows whose pairs lie within the 0 tokens, got rows from"):
        train_probes([job], hidden[:, :0], inputs[:, :0], LINEAR, schedule)
    with pytest.raises(
        InputError, match="expected training tokens, got none for layer 0 at offset 0"
    ):
        train_probes([replace(job, train=job.train[:0])], hidden, inputs, LINEAR, schedule)
    with pytest.raises(InputError, match="rows from 0 to 149 at offset 1"):
        train_probes(
            [replace(job, train=torch.arange(TOKENS), offset=1)], hidden, inputs, LINEAR, schedule
        )
    with pytest.raises(
        InputError, match="layer below 3 and a target below 1, got layer 3 and target 0"
    ):
        train_probes([replace(job, layer=3)], hidden, inputs, LINEAR, schedule)
    with pytest.raises(InputError, match=r"positive learning rates, got \(\)"):
        train_probes([replace(job, rates=())], hidden, inputs, LINEAR, schedule)
    with pytest.raises(InputError, match="batch_size of at least 1, got 0"):
        train_probes([job], hidden, inputs, LINEAR, Schedule("l2", batch_size=0))


@pytest.mark.gpu
@pytest.mark.parametrize("network", [LINEAR, MLP], ids=["linear", "mlp"])
def test_the_gpu_ends_where_the_cpu_ends(network, data):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    schedule = Schedule("cosine", batch_size=16, patience=4, max_epochs=25)
    jobs = cells()
    there = train_probes(jobs, *(values.cuda() for values in data), network, schedule)
    for one, other in zip(there, train_probes(jobs, *data, network, schedule), strict=True):
        assert one.parameters[0].is_cuda
        assert_same(
            replace(one, parameters=tuple(p.cpu() for p in one.parameters)), other, rtol=1e-6
        )
