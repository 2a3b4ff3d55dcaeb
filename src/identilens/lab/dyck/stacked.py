"""Many Dyck transformers of one configuration at once: `torch.func` maps their forward pass over stacked parameters."""

from collections.abc import Sequence
from copy import deepcopy

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.func import functional_call, stack_module_state, vmap

from identilens.lab.dyck.modeling import DyckForCausalLM


class Stack:
    """Models of one configuration, the members: their parameters stacked, and their logits in one forward pass.

    Attributes:
        parameters: Parameters by the names of `DyckForCausalLM`, each with a first axis for the members, ready for
            training; also the tables of a minimal first layer.
    """

    def __init__(
        self, models: Sequence[DyckForCausalLM], device: str | torch.device = "cpu"
    ) -> None:
        self.models = models
        parameters, buffers = stack_module_state(list(models))
        self.parameters = {
            name: value.detach().to(device).requires_grad_(value.requires_grad)
            for name, value in (parameters | buffers).items()
        }
        self._mapped = deepcopy(models[0])
        # torch cannot map fused attention over members: it would run a loop.
        self._mapped.set_attn_implementation("eager")

    def logits(
        self, tokens: Int[Tensor, "member batch n"]
    ) -> Float[Tensor, "member batch n token"]:
        """Return next-token logits of every member, equal to those of its model up to rounding."""

        def of_member(state: dict[str, Tensor], ids: Tensor) -> Tensor:
            return functional_call(self._mapped, state, (ids,)).logits

        return vmap(of_member)(self.parameters, tokens)

    @torch.no_grad()
    def update_models(self) -> None:
        """Copy each member's parameters into its model."""
        for member, model in enumerate(self.models):
            for name, parameter in model.named_parameters():
                parameter.copy_(self.parameters[name][member])
