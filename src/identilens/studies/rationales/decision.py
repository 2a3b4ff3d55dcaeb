"""The class that a classifier predicts for one text: its probability for some of the tokens, and its explanations."""

from collections.abc import Sequence
from itertools import compress

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from identilens.errors import InputError
from identilens.models.inputs import Item, is_per_token
from identilens.models.lens import Lens
from identilens.models.linearise import HiddenMap
from identilens.studies.faithfulness.inputs import FinalStates, attributions

BATCH = 32
"""Number of sets of tokens in one run of the model."""


class Decision:
    """The class that a classifier predicts for one text.

    Attributes:
        label: The class.
        probability: Its probability, a scalar.
        removable: Positions of the tokens that are no special tokens, such as [CLS].
    """

    def __init__(self, lens: Lens, item: Item) -> None:
        self._lens, self._item = lens, item
        whole = class_probabilities(lens, [item])[0]
        self.label = int(whole.argmax())
        self.probability: Float[Tensor, ""] = whole[self.label]
        ids = item.tensors["input_ids"]
        self.removable: Int[Tensor, " token"] = (~torch.isin(ids, _special(lens))).nonzero()[:, 0]

    def probabilities(self, kept: Bool[Tensor, "*set token"]) -> Float[Tensor, "*set"]:
        """Return the probability of the class when the text has only some of its removable tokens.

        The other tokens are taken out of the text; special tokens stay.
        """
        positions = torch.ones(*kept.shape[:-1], self._item.length, dtype=torch.bool)
        positions[..., self.removable] = kept
        sets, places = positions.flatten(0, -2).unique(dim=0, return_inverse=True)
        sizes, found = sets.sum(-1), torch.empty(len(sets), dtype=torch.float64)
        # Texts of one length make a batch without padding: families disagree about its side and its token. Decoders
        # without such a token classify one text at a time.
        padding = getattr(self._lens.model.config.get_text_config(), "pad_token_id", None)
        for size in sizes.unique():
            for batch in (sizes == size).nonzero()[:, 0].split(1 if padding is None else BATCH):
                items = [_only(self._item, positions) for positions in sets[batch]]
                found[batch] = class_probabilities(self._lens, items)[:, self.label]
        return found[places].view(kept.shape[:-1])

    def explained(self, seed: int, attribution: bool) -> dict[str, Float[Tensor, " token"]]:
        """Return the explanations of the decision by the removable tokens, by name.

        Explanations of final states are averaged over the positions, by how much the logit depends on each: the norm of
        its gradient. For a classifier that reads the first token only, they are those of the first token's state.
        """
        decide = HiddenMap(self._lens, self._item, whole=True)
        output = decide.run(decide.inputs.clone().requires_grad_())
        [gradient] = torch.autograd.grad(output.logits[0, self.label], [output.hidden_states[-1]])
        reading = torch.linalg.vector_norm(gradient[0].double(), dim=-1).cpu()
        read = reading.nonzero()[:, 0]
        states = FinalStates(self._lens, self._item).explained(read.tolist(), seed, False)
        found = {name: reading[read] / reading.sum() @ scores for name, scores in states.items()}
        if attribution:

            def logit(batch: Tensor) -> Tensor:
                return torch.stack([decide.run(inputs).logits[0, self.label] for inputs in batch])

            found |= {name: one[0].detach().cpu() for name, one in attributions([logit], decide.inputs).items()}
        return {name: scores[self.removable].double() for name, scores in found.items()}


def class_probabilities(lens: Lens, items: Sequence[Item]) -> Float[Tensor, "text label"]:
    """Return the probability of each class for each text.

    Raises:
        InputError: If the model does not classify texts into two classes or more.
    """
    if any("input_ids" not in item.tensors for item in items):
        raise InputError("expected texts; their tokens are removed.")

    batches = lens.batches(items, range(len(items)), len(items))
    parts = [lens.run([items[number] for number in batch], whole=True).get("logits") for batch in batches]
    logits = None if parts[0] is None else torch.cat(parts)
    if logits is None or logits.ndim != 2 or logits.shape[1] < 2:
        raise InputError(
            f"expected a model that classifies texts; {type(lens.model).__name__} gives no logits of two classes or "
            "more. Pass a fine-tuned checkpoint, such as a model of class BertForSequenceClassification."
        )
    return logits.double().softmax(-1).cpu()


def _special(lens: Lens) -> Int[Tensor, " special"]:
    """Return the special tokens; the unknown token is a word of the text."""
    tokenizer = lens.tokenizer
    found = set() if tokenizer is None else set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    return torch.tensor(sorted(found), dtype=torch.long)


def _only(item: Item, kept: Bool[Tensor, " position"]) -> Item:
    tensors = {name: one[kept] if is_per_token(name) else one for name, one in item.tensors.items()}
    return Item(tensors, {kind: tuple(compress(names, kept.tolist())) for kind, names in item.tokens.items()})
