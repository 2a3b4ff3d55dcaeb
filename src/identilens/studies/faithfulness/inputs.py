"""Explanations of a whole model: which input tokens a final hidden state comes from, by several methods."""

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from identilens.errors import InputError
from identilens.measures.mixing.contributions import contributions
from identilens.models.derivative.jacobian import DEFAULT_PROBES, jacobian_norms, output_norms
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap
from identilens.models.rollouts import final_rollouts

PROBES = 16
"""Probes of the sketch of Hidden Token Attribution."""

STEPS = 16
"""Steps of integrated gradients."""

Scores = dict[str, Float[Tensor, "position input"]]


class FinalStates:
    """The final hidden states of one text as a function of its input embeddings; every set of tokens is run once."""

    def __init__(self, lens: Lens, item: Item) -> None:
        if lens.model.config.is_encoder_decoder:
            raise InputError(
                "expected a model with one stack for explanations of states; leave explained out."
            )
        self.lens, self.item = lens, item
        self._map = HiddenMap(lens, item)
        self.inputs: Float[Tensor, "input d_in"] = self._map.inputs
        self.causal = lens.sites(item)[0].kind == "decoder"
        with torch.no_grad():
            self.own = self(self.inputs)
        self._known: dict[bytes, Tensor] = {}

    def __call__(self, inputs: Float[Tensor, "input d_in"]) -> Float[Tensor, "position d_model"]:
        """Return the final hidden states for some inputs."""
        return self._map(inputs)[-1]

    def seen(self, position: int) -> int:
        """Return the number of tokens that a position sees, from the first on."""
        return position + 1 if self.causal else len(self.inputs)

    def removed(
        self, position: int, sets: Bool[Tensor, "set seen"]
    ) -> dict[str, Float[Tensor, " set"]]:
        """Return the relative move of a final state when tokens are replaced by the mean input: ‖Δ e‖ / ‖e‖."""
        found = []
        for tokens in pad(sets, (0, len(self.inputs) - sets.shape[1])):
            name = tokens.cpu().numpy().tobytes()
            if name not in self._known:
                replaced = torch.where(
                    tokens.to(self.inputs.device)[:, None], self.inputs.mean(0), self.inputs
                )
                with torch.no_grad():
                    self._known[name] = self(replaced)
            move = (self._known[name][position] - self.own[position]).double()
            found.append(
                torch.linalg.vector_norm(move)
                / torch.linalg.vector_norm(self.own[position].double())
            )
        return {"hidden": torch.stack(found).cpu()}

    def explained(self, positions: Sequence[int], seed: int, attribution: bool) -> Scores:
        """Return the explanations of some final states by name."""
        places = list(positions)
        found = {
            f"rollout_{name}": one[places]
            for name, one in final_rollouts(self.lens, self.item).items()
        }
        if (alti := found.pop("rollout_alti", None)) is not None:
            found["alti"] = alti
        found["hta"] = self._token_attribution(places, seed)
        if attribution:
            by_score = attributions([self._score(position) for position in places], self.inputs)
            found |= {name: one.abs() for name, one in by_score.items()}
        return {name: one.detach().double().cpu() for name, one in found.items()}

    def _token_attribution(self, places: list[int], seed: int) -> Float[Tensor, "position input"]:
        """Return the sketched Hidden Token Attribution: of a single state by reverse mode, which costs n times less."""
        if len(places) == 1:
            norms = output_norms(
                self,
                self.inputs,
                places[0],
                probes=min(DEFAULT_PROBES, self.own.shape[1]),
                seed=seed,
            )
            return contributions(norms.squares, norms.variances).shares
        norms = jacobian_norms(
            self._map, self.inputs, probes=min(PROBES, self.inputs.shape[1]), seed=seed
        )[-1]
        return contributions(norms.squares, norms.variances).shares[places]

    def _score(self, position: int) -> Callable[[Tensor], Tensor]:
        """Return ⟨e, ê⟩ of a batch of inputs, the state's length along its own direction."""
        direction = self.own[position] / torch.linalg.vector_norm(self.own[position])
        return lambda batch: torch.stack([self(one)[position] @ direction for one in batch])


def attributions(
    scores: Sequence[Callable[[Tensor], Tensor]], inputs: Float[Tensor, "input d_in"]
) -> dict[str, Float[Tensor, "score input"]]:
    """Return each token's attribution of each score, a function of a batch of inputs, by captum's methods."""
    attr = captum()
    whole, size = inputs[None].clone(), inputs.shape[1]
    methods: dict[str, Callable[[Any], Tensor]] = {
        "gradient_input": lambda score: attr.InputXGradient(score).attribute(
            whole.requires_grad_()
        ),
        "integrated_gradients": lambda score: attr.IntegratedGradients(score).attribute(
            whole, n_steps=STEPS, internal_batch_size=1
        ),
        # Every entry of a token gets the whole change.
        "occlusion": lambda score: (
            attr.Occlusion(score).attribute(whole, sliding_window_shapes=(1, size)) / size
        ),
    }
    return {
        name: torch.stack([method(score)[0].sum(-1) for score in scores])
        for name, method in methods.items()
    }


def captum() -> Any:
    """Return captum's attribution methods.

    Raises:
        InputError: If captum is not installed.
    """
    try:
        return import_module("captum.attr")
    except ImportError as error:
        raise InputError(
            "attribution needs captum. Run: pip install 'identilens[faithfulness]'"
        ) from error
