"""Minimisers of the squared loss with L2 regularisation after a minimal first layer (Wen et al. 2023, Corollary 2)."""

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from identilens.lab.dyck.balance import SecondLayer, measure_balance, second_layer
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.prefixes import Prefixes
from identilens.lab.dyck.training import new_model
from identilens.runs.tables import Row


def predict(model: DyckForCausalLM, prefixes: Prefixes) -> Float[Tensor, "prefix token"]:
    """Return the output of a model with one layer of Eq. 6 after a minimal first layer, at the end of each prefix.

    With c_u symbols of kind u in a prefix and their logits l_u, its softmax is softmax_u(l_u + log c_u).
    """
    layer, attention = model.get_submodule("dyck.layers.0"), _attention(model)
    embeddings = model.get_buffer("dyck.embeddings.symbol_table")[prefixes.last]
    weights = torch.softmax(attention.scores[prefixes.last] + prefixes.counts.log(), -1)
    mixed = layer.get_submodule("norm_2")(weights @ attention.values)
    return model.lm_head(layer.get_submodule("projection")(mixed + embeddings))


def _attention(model: DyckForCausalLM) -> SecondLayer:
    names = (f"dyck.layers.0.attention.{part}_proj.weight" for part in "qkv")
    table = model.get_buffer("dyck.embeddings.symbol_table")
    return second_layer(table, *map(model.get_parameter, names))


def minimise(
    config: DyckConfig, prefixes: Prefixes, strengths: Sequence[float], seed: int, iterations: int
) -> Iterator[Row]:
    """Yield the end point of L-BFGS for each λ, in order; each descent starts at the end of the previous one.

    The squared loss with L2 regularisation is minimised over all parameters θ, in float64 and on all prefixes at once:

        E ‖T − p‖² + λ/2 ‖θ‖².

    The expectation is exact. p is the distribution of the next token. Compared with the one-hot vector in Eq. 5 this
    changes the loss by a constant, so that its least value is 0. The result may be a local minimum.

    Each row has λ (``strength``), the regularised loss (``objective``), E ‖T − p‖² (``loss``), ‖θ‖ (``norm``), and the
    balance of the second layer. ``gradient`` is the norm of the gradient of the regularised loss, divided by that of
    the regularisation term, λ ‖θ‖: 0 at a smooth stationary point; at the kink of a ReLU it may be large.
    """
    model = new_model(config, seed).double()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for strength in strengths:
        optimiser = torch.optim.LBFGS(
            parameters,
            max_iter=iterations,
            max_eval=2 * iterations,
            line_search_fn="strong_wolfe",
            tolerance_grad=0.0,
            tolerance_change=0.0,
        )

        def objective(strength: float = strength) -> float:
            model.zero_grad()
            value = _loss(model, prefixes) + strength / 2 * _squares(parameters)
            value.backward()
            return value.item()

        optimiser.step(objective)
        loss = _loss(model, prefixes)
        gradients = torch.autograd.grad(loss + strength / 2 * _squares(parameters), parameters)
        norm, slope = (_squares(parts).sqrt().item() for parts in (parameters, gradients))
        yield {
            "strength": strength,
            "objective": loss.item() + strength / 2 * norm**2,
            "loss": loss.item(),
            "norm": norm,
            "gradient": slope / (strength * norm),
            **vars(measure_balance(config.language, _attention(model))),
        }


def _loss(model: DyckForCausalLM, prefixes: Prefixes) -> Float[Tensor, ""]:
    return prefixes.share @ (predict(model, prefixes) - prefixes.law).square().sum(1)


def _squares(parts: Sequence[Tensor]) -> Float[Tensor, ""]:
    return torch.stack([part.square().sum() for part in parts]).sum()
