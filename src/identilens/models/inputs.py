"""From user input (strings, pairs, token ids, padded batches, images) to unpadded model inputs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from identilens.errors import InputError
from identilens.models.families import position_limit
from identilens.models.padding import (
    COUNTED,
    SEQUENCES,
    beside,
    cut_padding,
    is_per_token,
    sequences_of,
)
from identilens.models.sequences import position_names
from identilens.models.token_names import token_names


@dataclass(frozen=True)
class Item:
    """One text (or pair, image, ...) as model input: tensors without batch axis and without padding.

    Attributes:
        tensors: Inputs by the names of the arguments of the model's forward method.
        joined: Names of tensors with all pictures of an item one after another; a batch concatenates them.
        tokens: Token at each position, by kind of sequence: "encoder", "decoder".
        text: The original text, if there is one.
        spans: First character of each token in the text, and the one after its last; empty where they are not known.
        bare: Names of inputs that came in a batch without their mask; some models do otherwise without one.
    """

    tensors: dict[str, Tensor]
    tokens: dict[str, tuple[str, ...]] = field(default_factory=dict)
    text: str | None = None
    joined: frozenset[str] = frozenset()
    bare: frozenset[str] = frozenset()
    spans: tuple[tuple[int, int], ...] = ()

    @property
    def shapes(self) -> frozenset[tuple]:
        """Sizes that must be equal for items of one batch: those of tensors that cannot be padded here."""
        # Padding needs a mask, and a mask would join documents that position_ids separate.
        return frozenset(
            (name, tensor.shape[1:] if name in self.joined else tensor.shape)
            for name, tensor in self.tensors.items()
            if not is_per_token(name) or name.endswith("position_ids")
        )

    @property
    def hiding(self) -> frozenset[str]:
        """Names of masks that hide something of the item: those that the model itself has to heed."""
        return frozenset(
            name
            for name, tensor in self.tensors.items()
            if name.endswith("mask") and not tensor.all()
        )

    def start(self, length: int) -> "Item":
        """Return the first tokens, at least two even of a single one; all of a sequence that has more than tokens."""
        uncut = not all(map(is_per_token, self.tensors))
        tensors = {
            name: tensor
            if uncut and not name.startswith("decoder_")
            else (tensor if len(tensor) > 1 else torch.cat([tensor, tensor]))[:length]
            for name, tensor in self.tensors.items()
        }
        tokens = {kind: ("",) * len(tensors[name]) for kind, name in sequences_of(tensors)}
        return replace(self, tensors=tensors, tokens=tokens)

    @property
    def length(self) -> int:
        """Number of positions of the longest sequence, used to group items of similar size."""
        return max((len(tokens) for tokens in self.tokens.values()), default=0)

    @property
    def identity(self) -> str:
        """All inputs of the model in one string; equal for equal inputs."""
        return " ".join(
            f"{name}:{tensor.tolist()}" for name, tensor in sorted(self.tensors.items())
        )


class InputReader:
    """Turns user input into items for one model, with its tokenizer and processors."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any = None,
        image_processor: Any = None,
    ) -> None:
        self.config, self.tokenizer, self.image_processor = config, tokenizer, image_processor

    def read(self, inputs: Any, max_length: int | None = None) -> list[Item]:
        """Return one item for each text.

        Args:
            inputs: An item; a string; token ids; a pair as a tuple of two strings; a mapping of batched model inputs
                (the attention mask is used to remove padding on any side); an image; or a list of strings, pairs, token
                ids or images. For encoder-decoder models a pair is (source,
                target); a single text is its own target.
            max_length: Cut texts to this many tokens, and keep special tokens. By default longer texts are an error.

        Raises:
            InputError: For empty input, a text without tokens or with too many, or a missing processor.
        """
        entries = self.entries(inputs, max_length)
        return [self.read_one(entry, index, max_length) for index, entry in enumerate(entries)]

    def entries(self, inputs: Any, max_length: int | None = None) -> Sequence[Any]:
        """Return the single texts of an input, those of a batch as items; see `read`."""
        if isinstance(inputs, Mapping):
            return list(self._from_batch(inputs, max_length))
        if isinstance(inputs, str | Item) or any(
            is_kind(inputs) for is_kind in (_is_pair, _is_ids, _is_image)
        ):
            inputs = [inputs]
        if not isinstance(inputs, Sequence) or not inputs:
            raise InputError(
                f"expected one or more texts, pairs, lists of token ids, or images; got {inputs!r:.80}. "
                "Pass a string, a list of strings, a list of (first, second) tuples, or a batch of model inputs."
            )
        return inputs

    def read_one(self, entry: Any, index: int, max_length: int | None = None) -> Item:
        """Return the item of a single text, whose number stands in errors."""
        if isinstance(entry, Item):
            return entry
        if _is_image(entry):
            if self.image_processor is None:
                raise InputError(
                    "an image needs an image_processor, and the model has none. Put its preprocessor_config.json into "
                    "the model's folder, pass one to Lens, or a batch of tensors."
                )
            batch = dict(self.image_processor(images=entry, return_tensors="pt"))
            return next(self._from_batch(batch, None))
        if isinstance(entry, Tensor):
            entry = entry.tolist()
        encoded = (
            {"input_ids": entry} if _is_ids(entry) else self._tokenize(entry, index, max_length)
        )
        ids = list(encoded["input_ids"])
        self._check_ids(ids, index)
        ids = ids[:max_length]
        self._check_length(len(ids), index)
        tensors = {"input_ids": torch.tensor(ids)}
        if "token_type_ids" in encoded:
            tensors["token_type_ids"] = torch.tensor(encoded["token_type_ids"])
        tokens = {"encoder": self.names(ids)}
        if self.config.is_encoder_decoder:
            if (start := getattr(self.config, "decoder_start_token_id", None)) is None:
                raise InputError(
                    "the model's configuration has no decoder_start_token_id, so decoder inputs cannot be made. "
                    "Pass a batch with decoder_input_ids."
                )
            if _is_pair(entry):
                ids = self._tokenize(entry[1], index, max_length)["input_ids"]
            target = [start, *ids[:-1]]
            tensors["decoder_input_ids"] = torch.tensor(target)
            tokens["decoder"] = self.names(target)
        spans = tuple(map(tuple, encoded.get("offset_mapping", ())))
        return Item(tensors, tokens, encoded.get("text"), spans=spans)

    def _tokenize(self, entry: Any, index: int, max_length: int | None) -> dict[str, Any]:
        if self.tokenizer is None:
            raise InputError(
                f"text {index} needs a tokenizer, and the model has none. Put its files into the model's folder "
                "(tokenizer.save_pretrained), pass a tokenizer to Lens, or give token ids instead of text."
            )
        first, second = entry if _is_pair(entry) else (entry, None)
        if not isinstance(first, str):
            raise InputError(
                f"text {index} has type {type(first).__name__}; expected a string, a pair, token ids or an image."
            )
        if not all(part.strip() for part in (first, second) if part is not None):
            raise InputError(f"text {index} is empty. Remove it, or give at least one word.")
        pair = None if self.config.is_encoder_decoder else second
        for part in (first, pair or ""):
            refuse_half_characters(part, f"text {index}")
        # Length is checked by _check_length, which names the option that truncates; the tokenizer only warns.
        located = pair is None and getattr(self.tokenizer, "is_fast", False)
        options = {"truncation": max_length is not None, "verbose": False, "return_tensors": None}
        options |= {"return_offsets_mapping": True} if located else {}
        encoded = self.tokenizer(first, pair, max_length=max_length, **options)
        starts = ("bos_token_id", "cls_token_id")
        doubled = [[getattr(self.tokenizer, name, None)] * 2 for name in starts]
        # The text, such as a chat's, has already the first token that the tokenizer puts before it.
        if list(encoded["input_ids"][:2]) in doubled:
            longest = None if max_length is None else max_length + 1
            encoded = self.tokenizer(first, pair, max_length=longest, **options)
            encoded = {name: row[1:] for name, row in encoded.items()}
        return {**encoded, "text": first if second is None else f"{first} ||| {second}"}

    def _from_batch(self, batch: Mapping[str, Any], max_length: int | None) -> Iterator[Item]:
        tensors = {
            name: value
            for name, value in batch.items()
            if isinstance(value, Tensor) and value.ndim > 0
        }
        others = sorted(
            name for name, value in batch.items() if value is not None and name not in tensors
        )
        counted = [tensors[name] for name in COUNTED if name in tensors]
        count = len(next(iter([*counted, *tensors.values()]), ()))
        if others or not tensors:
            raise InputError(
                f"a batch needs tensors with one row for each text, such as input_ids or pixel_values; got {others}. "
                'Give whole texts and no cache of earlier tokens, and call the tokenizer with return_tensors="pt".'
            )
        if not count or any(rows.ndim != 2 for rows in counted):
            shapes = {name: tuple(value.shape) for name, value in tensors.items()}
            raise InputError(
                f"a batch has one row for each text, as input_ids of shape (text, position); got {shapes}. "
                "For one text: ids[None]."
            )
        joined = frozenset(name for name, value in tensors.items() if len(value) != count)
        if joined and count > 1:
            raise InputError(
                f"the batch has {count} texts, but {', '.join(sorted(joined))} with another number of rows, so it "
                "is unclear which rows belong to which text. Give one text at a time (a batch of one)."
            )
        bare = frozenset(name for name in tensors if beside(name, "attention_mask") not in tensors)
        for row in range(count):
            item = {
                name: value if name in joined else value[row] for name, value in tensors.items()
            }
            cut_padding(item, row)
            for name in filter(is_per_token, item):
                if name.startswith("decoder_") or any(key in item for key in SEQUENCES):
                    item[name] = item[name][:max_length]
            tokens = {}
            for kind, name in sequences_of(item):
                self._check_length(len(item[name]), row)
                tokens[kind] = position_names(self.config, len(item[name]))
                if not name.endswith("embeds"):
                    self._check_ids(item[name].tolist(), row)
                    tokens[kind] = self.names(item[name].tolist())
            yield Item(item, tokens, joined=joined, bare=bare)

    def _check_ids(self, ids: Sequence[int], index: int) -> None:
        size = getattr(self.config.get_text_config(), "vocab_size", None)
        if not ids:
            raise InputError(
                f"text {index} is empty: it has no token ids. Remove it, or give at least one id."
            )
        if size is not None and not 0 <= min(ids) <= max(ids) < size:
            raise InputError(
                f"text {index}: token ids are from 0 to {size - 1}; got {min(ids)} at least, {max(ids)} at most. "
                "Use the model's own tokenizer."
            )

    def _check_length(self, length: int, index: int) -> None:
        limit = position_limit(self.config)
        if limit is not None and length > limit:
            raise InputError(
                f"text {index:,} has {length:,} tokens, and the model has {limit} positions. Pass max_length={limit} "
                f"(--max-length {limit}) to cut texts, or split them."
            )

    def names(self, ids: Sequence[int]) -> tuple[str, ...]:
        """Return the names of tokens; without a tokenizer, their ids."""
        return tuple(map(str, ids)) if self.tokenizer is None else token_names(self.tokenizer, ids)


def refuse_half_characters(text: str, where: str) -> None:
    """Raise for a text with half a character (a surrogate), which no tokenizer takes.

    Raises:
        InputError: With its place.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"half a character (surrogate {text[error.start]!a}) at position {error.start}"
        raise InputError(f"{where} has {half}. Correct the text.") from error


def collate(items: Sequence[Item], device: torch.device | str) -> dict[str, Tensor]:
    """Return one batch of model inputs, padded on the right, with attention masks for tokens."""
    batch = {}
    first = items[0]
    for name in first.tensors:
        rows = [item.tensors[name] for item in items]
        if name in first.joined:
            batch[name] = torch.cat(rows)
            continue
        if not is_per_token(name):
            batch[name] = torch.stack(rows)
            continue
        batch[name] = pad_sequence(rows, batch_first=True)
        packed = beside(name, "position_ids") in first.tensors
        if name.endswith(SEQUENCES) and not packed and name not in first.bare:
            mask = torch.arange(batch[name].shape[1]) < torch.tensor([*map(len, rows)])[:, None]
            batch[beside(name, "attention_mask")] = mask.long()
    return {name: value.to(device) for name, value in batch.items()}


def _is_pair(entry: Any) -> bool:
    return (
        isinstance(entry, tuple)
        and len(entry) == 2
        and all(isinstance(part, str) for part in entry)
    )


def _is_ids(entry: Any) -> bool:
    if isinstance(entry, Tensor):
        return entry.ndim == 1 and not entry.is_floating_point()
    return (
        isinstance(entry, list) and all(isinstance(token, int) for token in entry) and bool(entry)
    )


def _is_image(entry: Any) -> bool:
    return type(entry).__module__.startswith("PIL.") or (getattr(entry, "ndim", 0) == 3)
