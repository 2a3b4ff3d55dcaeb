"""Answers that follow a text: their tokens, and the text with them."""

from collections.abc import Sequence

from identilens.errors import InputError
from identilens.models.inputs import Item
from identilens.models.lens import Lens


def answer_ids(lens: Lens, words: str) -> list[tuple[int, ...]]:
    """Return the tokens of an answer as it is written and, where these are others, with a space before it.

    Which of them is meant depends on the text: the likelier one. None where a token is unknown.
    """
    ways = (words, f" {words.strip(' ')}")
    made = (tuple(lens.tokenizer.encode(way, add_special_tokens=False)) for way in ways)
    unknown = lens.tokenizer.unk_token_id
    return list(dict.fromkeys(ids for ids in made if ids and unknown not in ids))


def followed(lens: Lens, item: Item, ids: Sequence[int]) -> Item:
    """Return a text that is followed by tokens.

    Raises:
        InputError: For a text with other inputs than tokens, or more tokens than the model has positions.
    """
    if not ids:
        return item
    if item.tensors.keys() - {"input_ids", "attention_mask"}:
        raise InputError(
            "an answer of several tokens follows texts or token ids. Leave out the other inputs of the batch."
        )
    return lens.read([[*item.tensors["input_ids"].tolist(), *ids]])[0]
