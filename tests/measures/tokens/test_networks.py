"""The first parameters of probes, whatever the default precision is."""

import pytest
import torch

from identilens.measures.tokens.networks import LinearNetwork, MlpNetwork, mean_loss


@pytest.mark.parametrize("network", [LinearNetwork(), MlpNetwork(5)])
def test_first_parameters_are_glorot_in_single_precision_whatever_the_default(network):
    first = network.initial(3, 4, torch.Generator().manual_seed(0))
    torch.set_default_dtype(torch.float64)
    try:
        again = network.initial(3, 4, torch.Generator().manual_seed(0))
    finally:
        torch.set_default_dtype(torch.float32)
    sizes = [(3, 4)] if isinstance(network, LinearNetwork) else [(3, 5), (5,), (5, 4), (4,)]
    assert [tuple(one.shape) for one in first] == sizes
    for one, other in zip(first, again, strict=True):
        assert one.dtype == other.dtype == torch.float32
        assert torch.equal(one, other)
        if one.ndim == 2:
            limit = (6 / sum(one.shape)) ** 0.5
            assert 0.5 * limit < float(one.abs().max()) <= limit
            assert one.is_contiguous()
        else:
            assert not one.any()


def test_losses_by_hand():
    predicted = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    targets = torch.tensor([[4.0, 3.0], [1.0, 1.0]])
    assert float(mean_loss(predicted, targets, "l2")) == 1.0
    assert float(mean_loss(predicted, targets, "cosine")) == pytest.approx((1 - 0.96 + 1) / 2)
    network = MlpNetwork(2)
    W, b = torch.eye(2), torch.tensor([0.0, 1.0])
    made = network.apply((W, b, 2 * W, b), predicted)
    expected = torch.nn.functional.gelu(predicted + b) * 2 + b
    torch.testing.assert_close(made, expected)
    torch.testing.assert_close(LinearNetwork().apply((2 * W,), predicted), 2 * predicted)
