"""The bounded Dyck language Dyck_{k,D}, and exact samples of it (Wen et al. 2023, section 2)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from identilens.errors import InputError
from identilens.lab.drawing import seeded, uniforms
from identilens.lab.dyck.settings import DyckTraining

PADDING, START, END = 0, 1, 2
SPECIAL = 3
"""Number of tokens before the brackets: padding, start, end."""

Tokens = Int[Tensor, "count n"]
"""Sequences of one length."""


@dataclass(frozen=True)
class Dyck:
    """Dyck_{k,D} with its distribution of prefixes (Wen et al. 2023, Eq. 1, 2 and Definition 1).

    Tokens are 0 for padding, 1 for start, 2 for end, then the k open brackets, then the k closing ones.

    Attributes:
        types: k, the number of bracket types.
        max_depth: D, the largest number of open brackets.
        open_probability: q, the probability of an opening bracket where a closing one is also possible.

    Examples:
        >>> import identilens as idl
        >>> import torch
        >>> language = idl.lab.Dyck(types=2, max_depth=4)
        >>> language.sample_prefixes(2, 6, torch.Generator().manual_seed(0))
        tensor([[3, 4, 6, 4, 6, 4],
                [4, 6, 3, 3, 3, 4]])
    """

    types: int = 2
    max_depth: int = 4
    open_probability: float = 0.5

    @property
    def vocabulary(self) -> int:
        """Number of all tokens, with special tokens."""
        return SPECIAL + 2 * self.types

    @property
    def closing(self) -> slice:
        """The places of the closing brackets in the vocabulary."""
        return slice(SPECIAL + self.types, self.vocabulary)

    def is_open(self, tokens: Int[Tensor, "*shape"]) -> Tensor:
        """Return a mask of the open brackets."""
        return (tokens >= SPECIAL) & (tokens < self.closing.start)

    def is_close(self, tokens: Int[Tensor, "*shape"]) -> Tensor:
        """Return a mask of the closing brackets."""
        return tokens >= self.closing.start

    def open_chances(self) -> Float[Tensor, " depth"]:
        """Return the probability that the next bracket is open, at each depth from 0 to D (Eq. 3)."""
        return torch.tensor(
            [1.0, *[self.open_probability] * (self.max_depth - 1), 0.0], dtype=torch.float64
        )

    def sample_prefixes(self, count: int, length: int, generator: torch.Generator) -> Tokens:
        """Return prefixes of ``length`` brackets, without a start token, each drawn by Definition 1."""
        return self._walk(count, self.open_chances().expand(length, -1), generator)

    def sample_complete(self, count: int, length: int, generator: torch.Generator) -> Tokens:
        """Return balanced words of one even length, drawn by Definition 1 given that they end at depth 0.

        Exact, without rejection: let R_m(d) be the probability of depth 0 after m more brackets from depth d. Then the
        next bracket is open with probability q_d R_{m-1}(d+1) / R_m(d). The rest of the distribution is the same.

        Raises:
            InputError: For an odd length.
        """
        if length % 2:
            raise InputError(
                f"expected an even length, got {length}: every bracket of a balanced word has a partner"
            )
        chances = self.open_chances()
        reach, steps = torch.eye(len(chances), dtype=torch.float64)[0], []
        for _ in range(length):
            upward = chances * functional.pad(reach[1:], (0, 1))
            reach = upward + (1.0 - chances) * functional.pad(reach[:-1], (1, 0))
            # Depths from which 0 cannot be reached divide 0 by 0.
            steps.append((upward / reach).nan_to_num())
        return self._walk(count, torch.stack(steps[::-1]), generator)

    def sample(self, law: DyckTraining, count: int, seed: int) -> Tokens:
        """Return sequences of a training distribution after a start token.

        Raises:
            InputError: If the language has no word of the length.
        """
        draw = getattr(self, f"sample_{law.data}")
        return with_start(draw(count, law.length, seeded(seed)))

    def _walk(self, count: int, chances: Tensor, generator: torch.Generator) -> Tokens:
        """Return sequences drawn in parallel, given the probability of an open bracket at each step and depth."""
        shape = (len(chances), count)
        draws = uniforms(generator, *shape)
        kinds = torch.randint(self.types, shape, generator=generator)
        rows, tokens = torch.arange(count), []
        depth, stack = torch.zeros_like(rows), rows.new_zeros(count, self.max_depth)
        for chance, draw, kind in zip(chances, draws, kinds, strict=True):
            opens = draw < chance[depth]
            level = depth + opens - 1
            closing = self.types + stack[rows, level]
            tokens.append(SPECIAL + torch.where(opens, kind, closing))
            stack[rows, level] = kind
            depth = level + opens
        return torch.stack(tokens, 1)


def with_start(tokens: Int[Tensor, "*count length"]) -> Int[Tensor, "*count longer"]:
    """Return the same words after a start token (Eq. 10).

    Examples:
        >>> import torch
        >>> from identilens.lab.dyck import with_start
        >>> with_start(torch.tensor([[3, 4, 6, 5]]))
        tensor([[1, 3, 4, 6, 5]])
    """
    return functional.pad(tokens, (1, 0), value=START)
