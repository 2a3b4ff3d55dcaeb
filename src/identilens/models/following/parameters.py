"""Output projections that a model stores as a parameter and applies by einsum, as modules that can be watched."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn


class ParameterProjection(nn.Module):
    """The linear map x W that an einsum computes with a parameter: x has the summed axes, side by side."""

    def __init__(self, parameter: nn.Parameter, order: tuple[int, ...], summed: int) -> None:
        super().__init__()
        self.parameter, self.order, self.summed = parameter, order, summed

    def forward(self, joined: Float[Tensor, "*position d_in"]) -> Float[Tensor, "*position d_out"]:
        """Return x W."""
        weight = self.parameter.permute(self.order)
        return joined @ weight.flatten(self.summed).flatten(0, self.summed - 1).mT


def parameter_projection(
    name: str, args: tuple[Any, ...]
) -> tuple[ParameterProjection, Tensor] | None:
    """Return the map that an einsum applies to its first operand, and that operand with its summed axes joined.

    None unless it is a sum over the last axes of the operand with a parameter that has no other axis in common.
    """
    if name != "einsum" or len(args) != 3 or not isinstance(args[2], nn.Parameter):
        return None
    inputs, out = args[0].replace(" ", "").split("->")
    given, own = inputs.split(",")
    summed = "".join(letter for letter in given if letter in own)
    made = "".join(letter for letter in own if letter not in summed)
    lead = given.removesuffix(summed)
    if not summed or not made or out != lead + made:
        return None
    order = tuple(own.index(letter) for letter in made + summed)
    return ParameterProjection(args[2], order, len(made)), args[1].flatten(len(lead))
