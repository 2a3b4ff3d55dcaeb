"""Training many Dyck transformers of one configuration at once, as one batched computation."""

from collections.abc import Callable, Sequence
from copy import deepcopy
from math import cos, pi
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from identilens.errors import NumericalError
from identilens.lab.drawing import seeded
from identilens.lab.dyck.configuration import DyckConfig
from identilens.lab.dyck.language import SPECIAL, Dyck
from identilens.lab.dyck.modeling import DyckForCausalLM
from identilens.lab.dyck.settings import DyckTraining

Members = Int[Tensor, "member batch n"]
"""Sequences of each member."""


class Stack:
    """Models of one configuration, the members: their parameters stacked, and their logits in one forward pass.

    Attributes:
        parameters: Parameters by the names of `DyckForCausalLM`, each with a first axis for the members, ready for
            training; also the tables of a minimal first layer.
    """

    def __init__(self, models: Sequence[DyckForCausalLM], device: str = "cpu") -> None:
        parameters, buffers = stack_module_state([nn.Module.to(model, device) for model in models])
        self.parameters = parameters | buffers
        self._mapped = deepcopy(models[0])
        # torch cannot map fused attention over members: it would run a loop.
        self._mapped.set_attn_implementation("eager")

    def logits(self, tokens: Members) -> Float[Tensor, "member batch n token"]:
        """Return next-token logits of every member, equal to those of its model up to rounding."""
        return vmap(lambda state, ids: functional_call(self._mapped, state, (ids,)).logits)(
            self.parameters, tokens
        )


class Trained(NamedTuple):
    """Members that were trained together.

    Attributes:
        models: One model per seed.
        losses: Mean cross-entropy of each epoch and member, without the contrastive term.
    """

    models: list[DyckForCausalLM]
    losses: Float[Tensor, "epoch member"]


def new_model(config: DyckConfig, seed: int) -> DyckForCausalLM:
    """Return a model with the initial weights of a seed; the global random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return DyckForCausalLM(config)


def train_models(
    config: DyckConfig,
    seeds: Sequence[int],
    training: DyckTraining,
    *,
    device: str = "cpu",
    progress: Callable[[str], None] | None = None,
) -> Trained:
    """Return models trained from several seeds, all in one stack of parameters.

    AdamW without dropout. In epoch e of E, the learning rate is that of the settings times (1 + cos(π e/E))/2. Every
    member has its own initial weights and its own order of the sequences, so the result equals that of training it
    alone, up to rounding. With λ > 0 the loss of Wen et al. 2023, Eq. 22, is added:

        λ · mean ‖T(p ⊕ s) − T(s)‖²

    over logits T at the counted positions of s. p is a nest of brackets of random types; its depth is drawn again for
    each step. ``progress`` is called with a note after each epoch: its number, and the mean loss of the members.

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import DyckConfig, DyckTraining, train_models
        >>> config = DyckConfig(bracket_types=2, max_depth=3, num_hidden_layers=1, hidden_size=16)
        >>> trained = train_models(config, [0, 1], DyckTraining(tokens=2000, epochs=1))
        >>> [type(model).__name__ for model in trained.models]
        ['DyckForCausalLM', 'DyckForCausalLM']

    Raises:
        InputError: For settings that do not fit the language.
        NumericalError: If a loss is NaN or infinite.
    """
    language = config.language
    data = language.sample(training, training.training_sequences, 0).to(device)
    models = [new_model(config, seed) for seed in seeds]
    stack = Stack(models, device)
    if training.attention == "uniform":
        # Queries and keys of 0 attend to all visible positions equally.
        for name, value in stack.parameters.items():
            if ".q_proj." in name or ".k_proj." in name:
                value.requires_grad_(False).zero_()
    optimiser = torch.optim.AdamW(
        stack.parameters.values(),
        lr=training.learning_rate,
        weight_decay=training.weight_decay,
        fused=True,
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda epoch: (1 + cos(pi * epoch / training.epochs)) / 2
    )
    generators = list(map(seeded, seeds))
    # Drawn once for all members, so that their sequences have the same length and do not depend on other members.
    nests, means = seeded(0), []
    for epoch in range(1, training.epochs + 1):
        order = [torch.randperm(len(data), generator=generator) for generator in generators]
        total = torch.zeros(len(seeds), device=device)
        for batch in torch.stack(order).to(device).split(training.batch_size, 1):
            inputs, labels = data[batch][..., :-1], data[batch][..., 1:]
            logits, closing = stack.logits(inputs), language.is_close(labels)
            weight = closing / closing.sum((1, 2), keepdim=True)
            errors = cross_entropy(logits.flatten(0, 2), labels.flatten(), reduction="none")
            loss = entropy = (errors.view_as(weight) * weight).sum((1, 2))
            if training.contrast > 0:
                depth = int(torch.randint(1, language.max_depth + 1, (), generator=nests))
                longer = stack.logits(behind_nests(language, inputs, depth, generators))
                # The start token is before the nest: only later positions have a counterpart.
                gap = (longer[:, :, 2 * depth + 1 :] - logits[:, :, 1:]).square().mean(-1)
                later = weight[..., 1:]
                contrast = (gap * later).sum((1, 2)) / later.sum((1, 2))
                loss = entropy + training.contrast * contrast
            optimiser.zero_grad()
            loss.sum().backward()
            optimiser.step()
            total += entropy.detach() * batch.shape[1]
        schedule.step()
        mean = total.cpu() / len(data)
        means.append(mean)
        if not mean.isfinite().all():
            raise NumericalError(f"a loss is not finite in epoch {epoch}; lower the learning rate")
        if progress:
            progress(f"epoch {epoch} of {training.epochs}, loss {mean.mean():.4f}")
    for member, model in enumerate(models):
        model.load_state_dict({name: value[member] for name, value in stack.parameters.items()})
    return Trained([model.cpu().eval() for model in models], torch.stack(means))


def behind_nests(
    language: Dyck,
    inputs: Members,
    depth: int,
    generators: Sequence[torch.Generator],
) -> Int[Tensor, "member batch longer"]:
    """Return the sequences with a nest of bracket pairs between the start token and the first bracket.

    Each member's generator draws the types of the ``depth`` pairs for all its sequences.
    """
    kinds = [
        torch.randint(language.types, (inputs.shape[1], depth), generator=generator)
        for generator in generators
    ]
    opens = SPECIAL + torch.stack(kinds).to(inputs.device)
    return torch.cat(
        [inputs[..., :1], opens, (opens + language.types).flip(-1), inputs[..., 1:]], -1
    )
