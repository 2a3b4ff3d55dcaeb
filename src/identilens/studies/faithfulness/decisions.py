"""The decision of a model on a text as a function of the text's tokens: a class, or what follows the text."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from itertools import compress
from typing import Any

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
from identilens.runs.tables import Row
from identilens.studies.faithfulness.evaluation import Effects, Sets, once

BATCH = 32
"""Number of sets of tokens in one run of the model."""

KEPT = 0.9
"""Share of an answer's probability with which tokens are enough for it."""

STEPS = 16
"""Steps of integrated gradients."""

Labels = tuple[int, ...]
"""An answer by number: a class, or the tokens that follow a text."""

Names = Mapping[int, str]
"""Names of a model's classes, or of the tokens that it can predict."""


def answers(lens: Lens, item: Item, named: str) -> tuple[Names, Sequence[Labels]]:
    """Return the names of a model's classes or tokens, and the answers of a name: all of them for an empty name.

    Raises:
        InputError: For no text, or a model that has two stacks, or neither classifies nor predicts.
        SettingError: For a name that is no answer of the model.
    """
    if "input_ids" not in item.tensors or lens.model.config.is_encoder_decoder:
        raise InputError("expected texts, whose tokens are removed, and a model with one stack.")
    known = class_probabilities(lens, [item]).shape[2]
    config: Any = lens.model.config
    names = config.id2label
    continues = known != config.num_labels
    if continues:
        # Some models have logits of more tokens than their vocabulary has.
        known = min(known, len(lens.tokenizer or range(known)))
        names = dict(enumerate(lens.reader.names(range(known))))
    labels: list[Labels] = [
        (label,) for label, name in names.items() if named in ("", name, name.strip(" "))
    ]
    if not labels and continues and lens.tokenizer:
        labels = answer_ids(lens, named)
    if not labels:
        expected = f"to be one of the model's classes or tokens, such as {[*names.values()][:5]}"
        raise SettingError("decision", expected, named)
    return names, labels


class Decision:
    """The answer of a model to one text: the class of a classifier, or the next tokens of a language model.

    Attributes:
        labels: Of the answers that are looked at the most likely one.
        own: The answer that the model gives, of as many tokens: the most likely token each time.
        probability: Probability of the answer; of several tokens the product of theirs.
        removable: Positions of the tokens that are no special tokens, such as [CLS]. Of a text for a language model the
            last token stays, too: the answer is what follows it.
        alone: Change of the probability when all removable tokens but those of a set are taken out of the text.

    Raises:
        InputError: For a text that cannot be followed by several tokens, or an answer of probability 0.
    """

    def __init__(self, lens: Lens, item: Item, names: Names, choices: Sequence[Labels]) -> None:
        self._lens, self._item, self._names = lens, item, names
        each = class_probabilities(lens, [item])[0, 0]
        self._continues = len(each) != lens.model.config.num_labels
        found = [
            float(self._likely([item], labels) if labels[1:] else each[labels[0]])
            for labels in choices
        ]
        self.probability = max(found)
        self.labels = choices[found.index(self.probability)]
        if not self.probability:
            raise InputError(
                f"the answer {self._name(self.labels)!r:.80} has a probability too small for a number. Name a shorter "
                "or likelier one."
            )
        self.own: Labels = ()
        while len(self.own) < len(self.labels):
            self.own += (int(class_probabilities(lens, [followed(lens, item, self.own)]).argmax()),)
        special = set(getattr(lens.tokenizer, "all_special_ids", ()))
        # The unknown token is a word of the text.
        special.discard(getattr(lens.tokenizer, "unk_token_id", None))
        ids = item.tensors["input_ids"].tolist()
        if self._continues:
            ids.pop()
        self.removable = [place for place, token in enumerate(ids) if token not in special]
        self.alone = once(self._changes)

    def _changes(self, kept: Sets) -> Effects:
        sets = torch.ones(len(kept), self._item.length, dtype=torch.bool)
        sets[:, self.removable] = kept
        sizes, found = sets.sum(-1), torch.empty(len(sets), 1, dtype=torch.float64)
        # Texts of one length make a batch without padding: families disagree about its side and its token. Decoders
        # without such a token run one text at a time, and so do language models, whose logits need much memory.
        padding = getattr(self._lens.model.config.get_text_config(), "pad_token_id", None)
        many = BATCH if padding is not None and not self._continues else 1
        for size in sizes.unique():
            for batch in (sizes == size).nonzero()[:, 0].split(many):
                items = [_only(self._item, places) for places in sets[batch].tolist()]
                found[batch, 0] = self._likely(items, self.labels) - self.probability
        return found

    def explained(self, seed: int, attribution: bool) -> dict[str, Float[Tensor, " token"]]:
        """Return the explanations of the decision by the removable tokens, by name.

        Explanations of final states are averaged over the positions, by how much the logit depends on each: the norm of
        its gradient. For a classifier that reads the first token only, they are those of the first token's state; for a
        language model those of the states before each token of the answer, whose logits are added.
        """
        item = followed(self._lens, self._item, self.labels[:-1])
        decide = HiddenMap(self._lens, item, whole=True)

        def logit(output: Any) -> Tensor:
            # A language model has logits of all positions; those of the answer are the last ones.
            last = output.logits.flatten(0, -2)[-len(self.labels) :]
            return last[range(len(last)), self.labels].sum()

        output = decide.run(decide.inputs.clone().requires_grad_())
        [gradient] = torch.autograd.grad(logit(output), [output.hidden_states[-1]])
        reading = gradient[0].double().norm(dim=-1).cpu()
        reading /= reading.sum()
        found = {
            name if name == "alti" else f"rollout_{name}": reading @ scores.double().cpu()
            for name, scores in final_rollouts(self._lens, item).items()
        }
        found["hta"] = torch.zeros_like(reading)
        probes = min(DEFAULT_PROBES, gradient.shape[2])
        for position in reading.nonzero()[:, 0].tolist():
            norms = output_norms(
                lambda inputs: decide(inputs)[-1],
                decide.inputs,
                position,
                probes=probes,
                seed=seed,
            )
            shares = contributions(norms.squares, norms.variances).shares[0]
            found["hta"] += reading[position] * shares.detach().double().cpu()
        if attribution:
            attr, inputs = captum(), decide.inputs[None].clone().requires_grad_()

            def logits(batch: Tensor) -> Tensor:
                return torch.stack([logit(decide.run(one)) for one in batch])

            window = 1, inputs.shape[2]
            scores = {
                "gradient_input": attr.InputXGradient(logits).attribute(inputs),
                "integrated_gradients": attr.IntegratedGradients(logits).attribute(
                    inputs, n_steps=STEPS, internal_batch_size=1
                ),
                "occlusion": attr.Occlusion(logits).attribute(inputs, sliding_window_shapes=window),
            }
            found |= {name: one[0].sum(-1).detach().cpu() for name, one in scores.items()}
        return {name: scores[self.removable].double() for name, scores in found.items()}

    def needed(self) -> Iterator[Row]:
        """Yield what the answer loses without each token, and whether the token is one of those that are enough."""
        tokens = len(self.removable)
        changes = self.alone(~torch.eye(tokens).bool())[:, 0]
        # Something of the text must stay.
        least = int(tokens == self._item.length)
        sets = removal_sets(changes.argsort(stable=True), range(least, tokens + 1))
        enough = sets[self.alone(sets)[:, 0] >= (KEPT - 1) * self.probability][0]
        [names] = self._item.tokens.values()
        for place, change, kept in zip(
            self.removable, changes.tolist(), enough.tolist(), strict=True
        ):
            yield {
                "answer": self._name(self.labels),
                "own_answer": self._name(self.own),
                "probability": self.probability,
                "position": place,
                "token": names[place],
                "change": change,
                "enough": kept,
            }

    def _likely(self, items: Sequence[Item], labels: Labels) -> Float[Tensor, " text"]:
        """Return the probability of an answer to each text; texts for a language model have one length."""
        continued = [followed(self._lens, item, labels[:-1]) for item in items]
        each = class_probabilities(self._lens, continued, len(labels))
        return each[:, range(len(labels)), labels].prod(-1)

    def _name(self, labels: Labels) -> str:
        return joined([self._names.get(label, str(label)) for label in labels])


def class_probabilities(
    lens: Lens, items: Sequence[Item], steps: int = 1
) -> Float[Tensor, "text step label"]:
    """Return the probability of each class for each text; of a language model, of each token at the last steps.

    Texts for a language model have one length; the last step is that of the token after the text.

    Raises:
        InputError: If the model neither classifies texts into two classes or more, nor predicts the next token.
    """
    batches = lens.batches(items, range(len(items)), len(items))
    runs = (lens.run([items[number] for number in batch], whole=True) for batch in batches)
    logits = torch.cat([run.get("logits", torch.empty(0)) for run in runs])
    labels = logits.shape[-1]
    # Neither classes of each token, nor tokens of a model that reads both sides.
    follows = lens.sites(items[0])[0].kind == "decoder" and labels != lens.model.config.num_labels
    if labels < 2 or (logits.ndim > 2 and not follows):
        raise InputError(
            f"expected a model that classifies texts, or predicts the next token; {type(lens.model).__name__} gives no "
            "logits of two classes or more, nor of a token after the text. Pass a fine-tuned checkpoint, such as a "
            "model of class BertForSequenceClassification, or a language model, such as GPT2LMHeadModel."
        )
    return logits.view(len(items), -1, labels)[:, -steps:].double().softmax(-1).cpu()


def _only(item: Item, kept: list[bool]) -> Item:
    """Return a text with only some of its tokens."""
    tensors = {name: one[kept] if is_per_token(name) else one for name, one in item.tensors.items()}
    names = {kind: tuple(compress(held, kept)) for kind, held in item.tokens.items()}
    return Item(tensors, names)


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
