"""Words in a text: the runs of its tokens that spell them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from unicodedata import combining, normalize

from identilens.models.inputs import Item
from identilens.models.token_names import unmarked


@dataclass(frozen=True)
class Spelling:
    """What the tokens of a sequence spell: by the characters of the text that they stand for, or by their names.

    Attributes:
        tokens: Names of the tokens.
        text: The text, if the place of each token in it is known.
        spans: First character of each token in the text, and the one after its last.
    """

    tokens: Sequence[str]
    text: str = ""
    spans: Sequence[tuple[int, int]] = ()

    @classmethod
    def of(cls, item: Item, sequence: str, tokens: Sequence[str]) -> "Spelling":
        """Return the spelling of a sequence of an item; pairs and pictures have names alone."""
        known = item.spans if len(item.spans) == len(tokens) and sequence == "encoder" else ()
        return cls(tokens, item.text or "", known)

    def runs(self, words: str) -> list[tuple[int, int]]:
        """Return each run of tokens that spells words in any case: its first token, and the one after its last.

        Spaces do not count. A run begins with its first letter, not with a line break before it. Several tokens of one
        character, as of an emoji, are one run.
        """
        wanted, size, runs = _plain(words), len(self.tokens), []
        for start in range(size):
            if not self._spelled(start, start + 1) or self._goes_on(start):
                continue
            end = start + 1
            while end < size and (
                len(self._spelled(start, end)) < len(wanted) or self._goes_on(end)
            ):
                end += 1
            if self._spelled(start, end) == wanted:
                runs.append((start, end))
        # Special tokens have names alone.
        return runs or (replace(self, spans=()).runs(words) if self.spans else [])

    def _goes_on(self, token: int) -> bool:
        """Return whether a token belongs to the character of the one before it."""
        spans = self.spans
        return bool(spans) and token > 0 and spans[token] == spans[token - 1] != (0, 0)

    def _spelled(self, start: int, end: int) -> str:
        """Return what tokens spell: the characters of the text, where these are known, or their names."""
        if not self.spans:
            return _plain("".join(map(unmarked, self.tokens[start:end])))
        first, last = self.spans[start][0], self.spans[end - 1][1]
        # A tokenizer that strips accents leaves them out of every token.
        while last < len(self.text) and combining(self.text[last]):
            last += 1
        return _plain(self.text[first:last])


def _plain(text: str) -> str:
    """Return text without spaces, in one case, each accent with its letter."""
    return normalize("NFC", "".join(text.split())).casefold()
