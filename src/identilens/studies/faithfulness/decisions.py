"""The decision of a model on a text as a function of the text's tokens: a class, or what follows the text."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from math import ceil, exp
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from identilens.errors import InputError, SettingError
from identilens.measures.explanations.orders import removal_sets
from identilens.measures.mixing.contributions import contributions
from identilens.models.continuations import answer_ids, followed
from identilens.models.derivative.jacobian import DEFAULT_PROBES, output_norms
from identilens.models.inputs import Item
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap
from identilens.models.padding import is_per_token
from identilens.models.rollouts import final_rollouts
from identilens.models.token_names import joined
from identilens.studies.faithfulness.evaluation import (
    Effects,
    Sets,
    Table,
    evaluate,
)
from identilens.studies.faithfulness.settings import FaithfulnessSettings
from identilens.studies.outcomes import log_likelihoods, log_probabilities

KEPT = 0.9
"""Share of an answer's probability with which tokens are enough for it."""

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
"""Shares of the tokens that are removed or kept (DeYoung et al. 2020, section 4.2)."""

Labels = tuple[int, ...]
"""An answer by number: a class, or the tokens that follow a text."""


@dataclass(frozen=True)
class Decision:
    """The answer of a model to one text: the class of a classifier, or the next tokens of a language model.

    Attributes:
        labels: The answer that is looked at.
        likeliest: The answer that the model gives, of as many tokens: the most likely token each time.
        probability: Probability of the answer; of several tokens the product of theirs.
        removable: Positions of the tokens that are no special tokens, such as [CLS]. Of a text for a language model the
            last token stays, too: the answer is what follows it.
    """

    lens: Lens
    item: Item
    labels: Labels
    likeliest: Labels
    probability: float
    removable: list[int]


def decide(lens: Lens, item: Item, named: str) -> Decision:
    """Return the answer to a text that a name stands for, the likeliest if several do; by default the model's own.

    Raises:
        InputError: For no text, a model that has two stacks, or neither classifies nor predicts, a text that cannot be
            followed by several tokens, or an answer of probability 0.
        SettingError: For a name that is no answer of the model.
    """
    classes: Any = lens.model.config.id2label
    generates = lens.model.can_generate()
    logits = lens.run([item], task_head=True).get("logits", torch.empty(0))
    # Neither classes of each token, nor tokens of a model that reads both sides.
    follows = generates and lens.sites(item)[0].kind == "decoder"
    chooses = logits.shape[-1] > 1 and (logits.ndim == 2 or follows)
    if "input_ids" not in item.tensors or lens.model.config.is_encoder_decoder or not chooses:
        raise InputError(
            "expected texts, whose tokens are removed, and a model with one stack that classifies texts, or predicts "
            f"the next token; {type(lens.model).__name__} does not. Pass a fine-tuned checkpoint, such as a model of "
            "class BertForSequenceClassification, or a language model, such as GPT2LMHeadModel."
        )
    likeliest = (int(log_probabilities(lens, [item]).argmax()),)
    if not named:
        choices = [likeliest]
    elif generates:
        choices = answer_ids(lens, named) if lens.tokenizer else []
    else:
        choices = [(label,) for label, name in classes.items() if name == named]
    if not choices:
        names = [*classes.values()][:5]
        expected = f"as tokens of the model or one of its classes, such as {names}"
        raise SettingError("decision", expected, named)
    likely = {labels: float(log_likelihoods(lens, [item], labels)) for labels in choices}
    labels = max(likely, key=likely.__getitem__)
    probability = exp(likely[labels])
    if not probability:
        raise InputError(
            f"the answer {answer_name(lens, labels)!r:.80} has a probability too small for a number. Name a shorter or "
            "likelier one."
        )
    while len(likeliest) < len(labels):
        likeliest += (int(log_probabilities(lens, [followed(lens, item, likeliest)]).argmax()),)
    # The unknown token is a word of the text.
    special = {*getattr(lens.tokenizer, "all_special_ids", ())}
    special -= {getattr(lens.tokenizer, "unk_token_id", None)}
    ids = item.tensors["input_ids"].tolist()
    if generates:
        ids.pop()
    removable = [index for index, token in enumerate(ids) if token not in special]
    return Decision(lens, item, labels, likeliest, probability, removable)


def answer_name(lens: Lens, labels: Labels) -> str:
    """Return an answer in words."""
    classes: Any = lens.model.config.id2label
    return joined(lens.reader.names(labels) if lens.model.can_generate() else [classes[labels[0]]])


def alone(decision: Decision, sets: Sets) -> Float[Tensor, " set"]:
    """Return the change of the answer's probability when all removable tokens but those of a set are taken out."""
    item, texts = decision.item, []
    kept = torch.ones(len(sets), item.length, dtype=torch.bool)
    kept[:, decision.removable] = sets
    for some in kept.tolist():
        tensors = {
            name: tensor[some] if is_per_token(name) else tensor
            for name, tensor in item.tensors.items()
        }
        names = {kind: tuple(compress(held, some)) for kind, held in item.tokens.items()}
        texts.append(Item(tensors, names))
    likely = log_likelihoods(decision.lens, texts, decision.labels)
    return likely.exp() - decision.probability


def explanations(decision: Decision, seed: int) -> dict[str, Float[Tensor, " token"]]:
    """Return the explanations of the decision by the removable tokens, by name.

    Explanations of final states are averaged over the positions, by how much the logit depends on each: the norm of its
    gradient. For a classifier that reads the first token only, they are those of the first token's state; for a
    language model those of the states before each token of the answer, whose logits are added.
    """
    labels = decision.labels
    item = followed(decision.lens, decision.item, labels[:-1])
    states = HiddenMap(decision.lens, item, task_head=True)

    output = states.run(states.inputs.clone().requires_grad_())
    # A language model has logits of all positions; those of the answer are the last ones.
    last = output.logits.flatten(0, -2)[-len(labels) :]
    logit = last[range(len(last)), labels].sum()
    [gradient] = torch.autograd.grad(logit, [output.hidden_states[-1]])
    reading = gradient[0].cpu().double().norm(dim=-1)
    reading /= reading.sum()
    scores = {
        name if name == "alti" else f"rollout_{name}": reading @ shares.cpu().double()
        for name, shares in final_rollouts(decision.lens, item).items()
    }
    probes = min(DEFAULT_PROBES, gradient.shape[2])
    final = lambda inputs: states(inputs)[-1]  # noqa: E731
    options: Any = {"probes": probes, "seed": seed, "at_once": states.passes_at_once}
    mixed = torch.zeros_like(reading)
    for position in reading.nonzero()[:, 0].tolist():
        norms = output_norms(final, states.inputs, position, **options)
        shares = contributions(norms.squares, norms.variances).shares[0]
        mixed += reading[position] * shares.detach().cpu().double()
    scores["hta"] = mixed
    return {name: shares[decision.removable] for name, shares in scores.items()}


def decision_scores(
    decision: Decision, text: int, settings: FaithfulnessSettings
) -> Iterator[Table]:
    """Yield the evaluation of the explanations of a decision: first tokens taken out, or kept alone."""
    seed = int(np.random.default_rng([settings.seed, text]).integers(2**31))
    explained = explanations(decision, seed)
    parts = len(decision.removable)
    # At least one token is removed, and at least one stays.
    sizes = [min(ceil(share * parts), parts - 1) for share in SHARES]
    generator = torch.Generator().manual_seed(seed)
    explained["random"] = torch.rand(parts, generator=generator, dtype=torch.float64)

    def effects(sets: Sets) -> Effects:
        return torch.stack([-alone(decision, ~sets), alone(decision, sets)], 1)

    floor = {"without": 0.0, "alone": 0.0}
    for table in evaluate(effects, explained, floor, sizes, settings, generator, bounded=False):
        named = {"intervention": table.pop("outcome"), "outcome": "probability"}
        yield {"text": text, **named, **table}


def token_needs(decision: Decision) -> Table:
    """Return what the answer loses without each token, and whether the token is one of those that are enough."""
    tokens = len(decision.removable)
    changes = alone(decision, ~torch.eye(tokens).bool())
    # Something of the text must stay.
    least = int(tokens == decision.item.length)
    sets = removal_sets(changes.argsort(stable=True), range(least, tokens + 1))
    enough = alone(decision, sets) >= (KEPT - 1) * decision.probability
    [names] = decision.item.tokens.values()
    return {
        "answer": answer_name(decision.lens, decision.labels),
        "own_answer": answer_name(decision.lens, decision.likeliest),
        "probability": decision.probability,
        "position": decision.removable,
        "token": [names[index] for index in decision.removable],
        "change": changes,
        "enough": sets[enough][0],
    }
